"""Data for training: texts and images, found or generated, tokenizers, packing, masking.

    texts = open_dataset("wikitext2", split="train")
    tokenizer = train_tokenizer(texts, vocab_size=8192)
    blocks = pack(texts, tokenizer, length=512)
    collate = MaskingCollator(tokenizer, seed=0)

    images = open_images("dogs_vs_cats", size=64, split="train")

Nothing here knows a model.
"""

from importlib.util import find_spec

if any(
    find_spec(name) is None for name in ("PIL", "datasets", "rich", "tokenizers", "transformers")
):
    raise ModuleNotFoundError(
        "lln.data needs datasets, pillow, rich, tokenizers and transformers: "
        "pip install 'lln[train]'"
    )

from lln.data.glue import TASKS, Task, encode, scores
from lln.data.images import open_images
from lln.data.listops import ListOpsStatistics, generate_listops, listops_statistics
from lln.data.masking import MaskingCollator
from lln.data.opening import open_dataset
from lln.data.packing import TokenBlocks, pack
from lln.data.pathfinder import generate_pathfinder
from lln.data.records import CropsAndFlips, Images, PixelTokens
from lln.data.sequences import encode_sequences
from lln.data.tokenizers import load_tokenizer, train_tokenizer
from lln.data.unigram import UnigramEntropy, unigram_entropy

__all__ = [
    "TASKS",
    "CropsAndFlips",
    "Images",
    "ListOpsStatistics",
    "MaskingCollator",
    "PixelTokens",
    "Task",
    "TokenBlocks",
    "UnigramEntropy",
    "encode",
    "encode_sequences",
    "generate_listops",
    "generate_pathfinder",
    "listops_statistics",
    "load_tokenizer",
    "open_dataset",
    "open_images",
    "pack",
    "scores",
    "train_tokenizer",
    "unigram_entropy",
]
