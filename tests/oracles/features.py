"""Linear attention by feature maps, and LLN's closest relatives."""

import math

import torch

from oracles.formulas import alone, for_each_query_head, normalise, normalise_exp, visible


def core_performer(core, q, k, **see):
    """Positive random features: log of Σ_f exp(ω_fᵀ(q + k) − |q|²/2 − |k|²/2)."""
    q, k = (
        core.scale**0.5 * x.double() for x in (q, k.repeat_interleave(q.shape[1] // k.shape[1], 1))
    )
    omega = core.projection.double()
    both = (q @ omega.mT).unsqueeze(3) + (k @ omega.mT).unsqueeze(2)  # (B, H, N, N, F)
    norms = q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :]
    return normalise_exp(both.logsumexp(-1) - norms / 2, visible(q.shape[2], k.shape[2], **see))


def core_hedgehog(core, q, k, **see):
    """Σ_c exp(a_c + b_c) + exp(−a_c − b_c) with a = W_q q + b_q and b = W_k k + b_k."""
    a = torch.einsum("hed,bhnd->bhne", core.query_weight.double(), q.double()) + core.query_bias
    b = torch.einsum("hed,bhnd->bhne", core.key_weight.double(), k.double()) + core.key_bias
    both = a.unsqueeze(3) + for_each_query_head(b, q).unsqueeze(2)
    scores = torch.cat([both, -both], -1).logsumexp(-1)
    return normalise_exp(scores, visible(q.shape[2], k.shape[2], **see))


@alone
def core_cosformer(core, q, k, causal):
    """relu(q_i)ᵀrelu(k_j) cos(π (i − j) / 2M)."""
    n = q.shape[2]
    position = torch.arange(n, dtype=torch.float64)
    cosine = (math.pi / 2 * (position[:, None] - position) / (core.max_len or n)).cos()
    weight = q.clamp(min=0) @ k.clamp(min=0).mT * cosine
    return normalise(weight.tril() if causal else weight)


@alone
def core_rfa(core, q, k, causal):
    """mean_f cos(ω_fᵀ(x_i − y_j)), ω = σ ∘ Gaussian, of unit vectors, by its sum or 0.1."""
    omega = core.sigma.double() * core.frequencies.double()
    x, y = (z / z.norm(dim=-1, keepdim=True).clamp(min=1e-12) for z in (q, k))
    difference = (x @ omega.mT).unsqueeze(3) - (y @ omega.mT).unsqueeze(2)
    weight = difference.cos().mean(-1)
    weight = weight.tril() if causal else weight
    return weight / weight.sum(-1, keepdim=True).clamp(min=0.1)
