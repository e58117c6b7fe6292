"""Attention as pure functions of tensors; α, β and features are explicit arguments.

Shapes are `(B, H, N, D)`; `key_mask` is `(B, N)` bool with True = keep. All forms of one mechanism
(bidirectional, causal, packed, recurrent) equal each other.
"""

from lln.functional.blocks import block_diagonal_attention
from lln.functional.diag import lln_diag_attention, lln_diag_recurrent
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
    "LLNState",
    "block_diagonal_attention",
    "block_diagonal_recurrent",
    "linear_attention",
    "lln_attention",
    "lln_diag_attention",
    "lln_diag_recurrent",
    "lln_recurrent",
    "softmax_attention",
]
