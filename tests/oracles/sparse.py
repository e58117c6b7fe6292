"""Attention to a few keys: windows, buckets."""

import torch

from oracles.formulas import alone, alone_out, normalise_exp, softmax


@alone
def core_longformer(core, q, k, causal):
    """Neighbours up to w/2 away; whatever is seen by or sees a global token."""
    query, key = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])
    seen = (query - key).abs() <= core.window / 2
    seen = seen | (query < core.global_tokens) | (key < core.global_tokens)
    return softmax(q, k, seen.tril() if causal else seen, core.scale)


@alone
def core_reformer(core, q, k, causal):
    """Keys of the same bucket in the same chunk of it or the one before, in any round."""
    rotated = q[:, :, None] @ core.rotations.double()
    bucket = torch.cat([rotated, -rotated], -1).argmax(-1)  # (1, H, R, n)
    same = bucket[..., :, None] == bucket[..., None, :]
    chunk = (same.tril().sum(-1) - 1) // core.chunk_size
    behind = chunk[..., :, None] - chunk[..., None, :]
    seen = (same & (behind >= 0) & (behind <= 1)).any(2)
    itself = torch.eye(q.shape[2], dtype=torch.bool)
    seen = (seen.tril() if causal else seen) & ~itself
    seen = seen | itself & ~seen.any(-1, keepdim=True)
    length = (q.square().sum(-1, keepdim=True) + 1e-6 * q.shape[3]).sqrt()
    return normalise_exp(q @ (q / length).mT, seen)


@alone_out
def out_transformer_ls(core, q, k, v, causal):
    """Keys [LN(Pᵀ K); LN(K)] and values alike, P = softmax(K W_P) over each span of tokens."""
    n, w, rank = q.shape[2], core.window, core.projection.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    start, span = i // w * w, w if causal else n
    spans = torch.arange(0, n, span)
    scores = (k @ core.projection.double()).mT[:, :, None]  # (1, H, 1, r, n)
    p = normalise_exp(scores, j // span * span == spans[:, None, None]).flatten(2, 3)
    near = (j >= start - w // 2) & (j < start + w + w // 2)
    far = torch.ones(n, len(spans) * rank, dtype=torch.bool)
    if causal:
        near, behind = (j <= i) & (j > i - w), (start - spans.repeat_interleave(rank)) // w
        far = (behind > 0) & (behind <= core.past)
    keys, values = (
        torch.cat([norm(core.long_norm, p @ x), norm(core.short_norm, x)], 2) for x in (k, v)
    )
    return softmax(q, keys, torch.cat([far, near], 1), core.scale) @ values


def norm(layer, x):
    """Layer norm of `(1, H, n, D)` over heads and features."""
    x = x - x.mean((1, 3), keepdim=True)
    x = x / (x.square().mean((1, 3), keepdim=True) + layer.eps).sqrt()
    weight, bias = (p.double().unsqueeze(1) for p in (layer.weight, layer.bias))  # (H, 1, D)
    return weight * x + bias
