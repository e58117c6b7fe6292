"""Attention as pure functions of tensors; α, β and features are explicit arguments.

Shapes are `(B, H, N, D)`; `key_mask` is `(B, N)` bool with True = keep. All forms of one mechanism
(bidirectional, causal, packed, recurrent) equal each other.
"""

from lln.functional.blocks import block_diagonal_attention
from lln.functional.diag import LLNDiagState, lln_diag_attention, lln_diag_recurrent
from lln.functional.kernel import kernel_attention
from lln.functional.linear import linear_attention
from lln.functional.lln import lln_attention
from lln.functional.recurrent import (
    BlockState,
    LLNState,
    block_diagonal_recurrent,
    lln_recurrent,
)
from lln.functional.softmax import softmax_attention

__all__ = [
    "BlockState",
    "LLNDiagState",
    "LLNState",
    "block_diagonal_attention",
    "block_diagonal_recurrent",
    "kernel_attention",
    "linear_attention",
    "lln_attention",
    "lln_diag_attention",
    "lln_diag_recurrent",
    "lln_recurrent",
    "softmax_attention",
]
