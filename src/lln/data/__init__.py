"""Text for training: corpora and GLUE from files or the hub, tokenizers, packing, masking.

    texts = open_dataset("wikitext2", split="train")
    tokenizer = train_tokenizer(texts, vocab_size=8192)
    blocks = pack(texts, tokenizer, length=512)
    collate = MaskingCollator(tokenizer, seed=0)

Nothing here knows a model.
"""

from importlib.util import find_spec

if any(find_spec(name) is None for name in ("datasets", "rich", "tokenizers", "transformers")):
    raise ModuleNotFoundError(
        "lln.data needs datasets, tokenizers, transformers and rich: pip install 'lln[train]'"
    )

from lln.data.glue import TASKS, Task, encode, scores
from lln.data.masking import MaskingCollator
from lln.data.opening import open_dataset
from lln.data.packing import TokenBlocks, pack
from lln.data.tokenizers import load_tokenizer, train_tokenizer
from lln.data.unigram import UnigramEntropy, unigram_entropy

__all__ = [
    "TASKS",
    "MaskingCollator",
    "Task",
    "TokenBlocks",
    "UnigramEntropy",
    "encode",
    "load_tokenizer",
    "open_dataset",
    "pack",
    "scores",
    "train_tokenizer",
    "unigram_entropy",
]
