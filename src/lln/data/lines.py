"""The lines of a corpus, which is what packing and tokenizers work on."""

from collections.abc import Iterator

from datasets import Dataset

from lln.data.reading import ROWS_AT_ONCE


def lines_of(texts: Dataset) -> Iterator[str]:
    """Lines without spaces around them; an empty one stands between documents.

    A row of several lines is a document of its own. Blank lines end one too, as in the files that
    fairseq reads; any number of them counts once, and none at the start or end.
    """
    if "text" not in texts.column_names:
        raise ValueError(
            f"a corpus needs the column 'text': this has {', '.join(texts.column_names)}"
        )
    started = ended = False
    for line in _raw_lines(texts):
        if not line:
            ended = started
            continue
        if ended:
            yield ""
        yield line
        started, ended = True, False


def _raw_lines(texts: Dataset) -> Iterator[str]:
    for batch in texts.iter(ROWS_AT_ONCE):
        for text in batch["text"]:
            lines = (text or "").strip().split("\n")  # Parquet may hold null
            yield from (line.strip() for line in lines)
            if len(lines) > 1:
                yield ""
