"""κ(q, k) = relu(qᵀk / √D), compared in Figure 2 of the LLN paper, O(N²)."""

from torch import Tensor

from lln.attention.score_kernel import ScoreKernelAttention
from lln.registry import register


@register("relu_kernel", paper="Nahshan et al. 2023, Figure 2", complexity="O(N²)")
class ReluKernelAttention(ScoreKernelAttention):
    """Attention with relu of the scores instead of exp, for analysis."""

    def kernel(self, scores: Tensor) -> Tensor:
        return scores.relu()
