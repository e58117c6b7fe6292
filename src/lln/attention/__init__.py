"""Attention mechanisms: one file each, registered by being imported here."""

from lln.attention.base import Attention, Mixer, MultiHead
from lln.attention.block_diag import BlockDiagAttention
from lln.attention.elu import EluAttention
from lln.attention.lln import LLNAttention, lln_attention
from lln.attention.lln_diag import LLNDiagAttention, lln_diag_attention
from lln.attention.quadratic import QuadraticAttention
from lln.attention.quadratic_kernel import QuadraticKernelAttention
from lln.attention.relu import ReluAttention
from lln.attention.relu_kernel import ReluKernelAttention
from lln.attention.softmax import SoftmaxAttention

__all__ = [
    "Attention",
    "BlockDiagAttention",
    "EluAttention",
    "LLNAttention",
    "LLNDiagAttention",
    "Mixer",
    "MultiHead",
    "QuadraticAttention",
    "QuadraticKernelAttention",
    "ReluAttention",
    "ReluKernelAttention",
    "SoftmaxAttention",
    "lln_attention",
    "lln_diag_attention",
]
