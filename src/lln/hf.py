"""Hugging Face models with attention of this package: the short name of `lln.integrations.hf`."""

from lln.integrations.hf import apply, load
from lln.integrations.hf.cache import cache
from lln.integrations.hf.calibrate import calibrate

__all__ = ["apply", "cache", "calibrate", "load"]
