"""Hugging Face models with attention of this package; `lln.hf` is the short name.

Importing it registers the attention and its masks with transformers, and lets `from_pretrained`
rebuild what `apply` built.
"""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ModuleNotFoundError("lln.hf needs transformers: pip install 'lln[train]'")

from lln.integrations.hf.persistence import load, register
from lln.integrations.hf.swap import apply

register()

__all__ = ["apply", "load"]
