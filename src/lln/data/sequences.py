"""Token ids of long texts, each text for itself, as the Long Range Arena's tasks need them."""

from datasets import Dataset, Features, List, Value, concatenate_datasets
from transformers import PreTrainedTokenizerFast

from lln.data.progress import tracked

ROWS_AT_ONCE = 1000
ONE, TWO = {"text": "input_ids"}, {"text1": "input_ids", "text2": "other_input_ids"}


def encode_sequences(
    dataset: Dataset, tokenizer: PreTrainedTokenizerFast, max_length: int
) -> Dataset:
    """Columns `input_ids`, for a pair also `other_input_ids`, and `labels`; no special tokens.

    Args:
        dataset: As `open_dataset` or `generate_listops` gives it.
        tokenizer: `load_tokenizer("bytes")` or `load_tokenizer("listops")`.
        max_length: Tokens at most; the rest of a longer text is left out.
    """
    if max_length < 1:
        raise ValueError(f"max_length {max_length} is not at least 1")
    names = ONE if "text" in dataset.column_names else TWO
    if not {*names, "label"} <= set(dataset.column_names):
        raise ValueError(
            "expected the columns text, or text1 and text2, and label: this has "
            f"{', '.join(dataset.column_names)}"
        )
    ids = dict.fromkeys(names.values(), List(Value("int32")))
    features = Features({**ids, "labels": Value("int64")})
    parts = []
    steps = -(-len(dataset) // ROWS_AT_ONCE)
    for batch in tracked(dataset.iter(ROWS_AT_ONCE), "tokenising", total=steps):
        columns = {
            written: tokenizer(
                _starts(batch[column], tokenizer, max_length),
                add_special_tokens=False,
                truncation=True,
                max_length=max_length,
                return_attention_mask=False,
                split_special_tokens=True,  # a text that spells one does not end there
            )["input_ids"]
            for column, written in names.items()
        }
        parts.append(Dataset.from_dict({**columns, "labels": batch["label"]}, features))
    return concatenate_datasets(parts)


def _starts(texts: list[str], tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[str]:
    """The beginnings that hold `max_length` tokens: of papers, most of the work is saved."""
    longest = max(map(len, set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)))
    characters = longest if longest == 1 else longest + 1  # a space may follow
    return [text[: max_length * characters] for text in texts]
