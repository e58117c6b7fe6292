"""LLN: attention that behaves like softmax attention and costs O(N) (arXiv 2311.13541)."""

from lln import functional, matching
from lln.attention import (
    Attention,
    LLNAttention,
    LLNDiagAttention,
    Mixer,
    MultiHead,
    lln_attention,
    lln_diag_attention,
)
from lln.integrations.torch import MultiheadAttention
from lln.registry import available, build, build_core, register

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "LLNAttention",
    "LLNDiagAttention",
    "Mixer",
    "MultiHead",
    "MultiheadAttention",
    "available",
    "build",
    "build_core",
    "functional",
    "lln_attention",
    "lln_diag_attention",
    "matching",
    "register",
]
