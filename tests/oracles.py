"""Attention matrices in float64, O(N² D), written from the papers' formulas; differentiable.

q is `(B, H, N_q, D)` and k `(B, H_kv, N_k, D)` of any float dtype; `visible` is bool and broadcasts
to the result, `(B, H, N_q, N_k)`. A row that sees nothing is 0.
"""

from itertools import pairwise

import torch


def softmax(q, k, visible, scale=None):
    """Eq. 1: P_ij ∝ exp(scale · q_iᵀ k_j), scale 1/√D by default."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * q.double() @ _for_each_query_head(k, q).mT
    return _normalise_exp(scores, visible)


def lln(q, k, visible, alpha, beta, key_shift=None):
    """Eq. 9: P_ij ∝ Σ_c exp(α q_ic + β (k_jc − shift_c)), α `(B, H)`, β `(B, H_kv)` or numbers."""
    alpha = torch.as_tensor(alpha, dtype=torch.float64)[..., None, None]
    beta = torch.as_tensor(beta, dtype=torch.float64)[..., None, None]
    shift = 0 if key_shift is None else key_shift.double().unsqueeze(-2)
    log_k = _for_each_query_head(beta * (k.double() - shift), q)
    log_q = alpha * q.double()
    scores = (log_q.unsqueeze(-2) + log_k.unsqueeze(-3)).logsumexp(-1)
    return _normalise_exp(scores, visible)


def kernel(phi_q, phi_k, visible):
    """Eq. 4: P_ij ∝ Φ(q_i)ᵀ Φ(k_j)."""
    return _normalise(phi_q.double() @ _for_each_query_head(phi_k, phi_q).mT * visible)


def visible(n_q, n_k, *, key_mask=None, causal=False, cu_seqlens=None):
    """Which query sees which key, `(B or 1, 1, N_q, N_k)`."""
    seen = torch.zeros(1 if key_mask is None else len(key_mask), 1, n_q, n_k, dtype=torch.bool)
    sequence = _sequences(n_k, cu_seqlens)
    for b in range(len(seen)):
        for i in range(n_q):
            for j in range(n_k):
                kept = key_mask is None or bool(key_mask[b, j])
                past = not causal or n_k - j >= n_q - i  # both counted from the end
                same = cu_seqlens is None or sequence[i] == sequence[j] is not None
                seen[b, 0, i, j] = kept and past and same
    return seen


def same_block(n_q, n_k, block_size, *, key_mask=None, causal=False, cu_seqlens=None):
    """Which query sees which key of its own block, `(B or 1, 1, N_q, N_k)`."""
    seen = visible(n_q, n_k, key_mask=key_mask, causal=causal, cu_seqlens=cu_seqlens)
    for b in range(len(seen)):
        keep = [True] * n_k if key_mask is None else key_mask[b].tolist()
        blocks_k = key_blocks(keep, block_size, cu_seqlens)
        blocks_q = query_blocks(n_q, keep, block_size, causal, cu_seqlens)
        for i in range(n_q):
            for j in range(n_k):
                seen[b, 0, i, j] &= blocks_q[i] is not None and blocks_q[i] == blocks_k[j]
    return seen


def key_blocks(keep, block_size, cu_seqlens=None):
    """For each key (sequence, block), blocks counted over real tokens; None at padding."""
    blocks, count = [], {}
    for real, sequence in zip(keep, _sequences(len(keep), cu_seqlens), strict=True):
        if real and sequence is not None:
            blocks.append((sequence, count.get(sequence, 0) // block_size))
            count[sequence] = count.get(sequence, 0) + 1
        else:
            blocks.append(None)
    return blocks


def query_blocks(n_q, keep, block_size, causal=False, cu_seqlens=None):
    """For each query the block in which it stands, None outside of all."""
    blocks = key_blocks(keep, block_size, cu_seqlens)
    if n_q != len(keep) and not causal:  # the last query stands where the last real key stands
        blocks = [block for block in blocks if block is not None]
    return ([None] * n_q + blocks)[len(blocks) :]


def _sequences(n, cu_seqlens):
    if cu_seqlens is None:
        return [0] * n
    spans = list(enumerate(pairwise(cu_seqlens.tolist())))
    return [next((s for s, (lo, hi) in spans if lo <= j < hi), None) for j in range(n)]


def _for_each_query_head(k, q):
    return k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def _normalise(weight):
    total = weight.sum(-1, keepdim=True)
    return weight / total.masked_fill(total == 0, 1)


def _normalise_exp(scores, visible):
    some = visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(~some, 0)
    return scores.softmax(-1) * some


# Registered cores: name → P of `core` for queries and keys that see each other as `see` says
# (key_mask, causal, cu_seqlens). α and β are the core's own; tests/matching checks those.


def core_softmax(core, q, k, **see):
    return softmax(q, k, visible(q.shape[2], k.shape[2], **see), core.scale)


def core_block_diag(core, q, k, **see):
    return softmax(q, k, same_block(q.shape[2], k.shape[2], core.block_size, **see), core.scale)


def core_lln(core, q, k, **see):
    found = core.matcher(q, k, **see)
    return lln(q, k, visible(q.shape[2], k.shape[2], **see), *found)


def core_lln_diag(core, q, k, **see):
    return (core_lln(core, q, k, **see) + core_block_diag(core, q, k, **see)) / 2


def core_elu(core, q, k, **see):
    phi_q, phi_k = ((x > 0) * (x + 1) + (x <= 0) * x.clamp(max=0).exp() for x in (q, k))
    return kernel(phi_q, phi_k, visible(q.shape[2], k.shape[2], **see))


def core_relu(core, q, k, **see):
    return kernel(q.clamp(min=0), k.clamp(min=0), visible(q.shape[2], k.shape[2], **see))


def core_quadratic(core, q, k, **see):
    return kernel(q.double() ** 2, k.double() ** 2, visible(q.shape[2], k.shape[2], **see))


def core_relu_kernel(core, q, k, **see):
    scores = core.scale * q.double() @ _for_each_query_head(k, q).mT
    return _normalise(scores.clamp(min=0) * visible(q.shape[2], k.shape[2], **see))


def core_quadratic_kernel(core, q, k, **see):
    scores = core.scale * q.double() @ _for_each_query_head(k, q).mT
    return _normalise(scores**2 * visible(q.shape[2], k.shape[2], **see))


def core(name):
    """The oracle of a registered core."""
    return globals()[f"core_{name}"]
