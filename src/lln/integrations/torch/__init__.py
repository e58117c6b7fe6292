"""LLN in place of `torch.nn.MultiheadAttention`."""

from lln.integrations.torch.multihead import MultiheadAttention

__all__ = ["MultiheadAttention"]
