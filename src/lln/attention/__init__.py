"""Attention mechanisms: one file each, registered by being imported here."""

from lln.attention.base import Attention, Mixer, MultiHead
from lln.attention.block_diag import BlockDiagAttention
from lln.attention.cosformer import CosformerAttention
from lln.attention.elu import EluAttention
from lln.attention.gau import GAUMixer
from lln.attention.hedgehog import HedgehogAttention
from lln.attention.linformer import LinformerAttention
from lln.attention.lln import LLNAttention, lln_attention
from lln.attention.lln_diag import LLNDiagAttention, lln_diag_attention
from lln.attention.longformer import LongformerAttention
from lln.attention.nystromformer import NystromformerAttention
from lln.attention.performer import PerformerAttention
from lln.attention.quadratic import QuadraticAttention
from lln.attention.quadratic_kernel import QuadraticKernelAttention
from lln.attention.reformer import ReformerAttention
from lln.attention.relu import ReluAttention
from lln.attention.relu_kernel import ReluKernelAttention
from lln.attention.rfa import RFAAttention
from lln.attention.skyformer import SkyformerAttention
from lln.attention.softmax import SoftmaxAttention
from lln.attention.tnn import TNNMixer
from lln.attention.transformer_ls import TransformerLSAttention
from lln.attention.transnormer_t1 import TransNormerT1Mixer
from lln.attention.transnormer_t2 import TransNormerT2Mixer

__all__ = [
    "Attention",
    "BlockDiagAttention",
    "CosformerAttention",
    "EluAttention",
    "GAUMixer",
    "HedgehogAttention",
    "LLNAttention",
    "LLNDiagAttention",
    "LinformerAttention",
    "LongformerAttention",
    "Mixer",
    "MultiHead",
    "NystromformerAttention",
    "PerformerAttention",
    "QuadraticAttention",
    "QuadraticKernelAttention",
    "RFAAttention",
    "ReformerAttention",
    "ReluAttention",
    "ReluKernelAttention",
    "SkyformerAttention",
    "SoftmaxAttention",
    "TNNMixer",
    "TransNormerT1Mixer",
    "TransNormerT2Mixer",
    "TransformerLSAttention",
    "lln_attention",
    "lln_diag_attention",
]
