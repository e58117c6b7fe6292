"""Attention matrices in float64, O(N² D), and who sees whom.

q is `(B, H, N_q, D)` and k `(B, H_kv, N_k, D)` of any float dtype; `visible` is bool and broadcasts
to the result, `(B, H, N_q, N_k)`. A row that sees nothing is 0.
"""

from itertools import pairwise

import torch


def softmax(q, k, visible, scale=None):
    """Eq. 1: P_ij ∝ exp(scale · q_iᵀ k_j), scale 1/√D by default."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * q.double() @ for_each_query_head(k, q).mT
    return normalise_exp(scores, visible)


def lln(q, k, visible, alpha, beta, key_shift=None):
    """Eq. 9: P_ij ∝ Σ_c exp(α q_ic + β (k_jc − shift_c)), α `(B, H)`, β `(B, H_kv)` or numbers."""
    alpha = torch.as_tensor(alpha, dtype=torch.float64)[..., None, None]
    beta = torch.as_tensor(beta, dtype=torch.float64)[..., None, None]
    shift = 0 if key_shift is None else key_shift.double().unsqueeze(-2)
    log_k = for_each_query_head(beta * (k.double() - shift), q)
    log_q = alpha * q.double()
    scores = (log_q.unsqueeze(-2) + log_k.unsqueeze(-3)).logsumexp(-1)
    return normalise_exp(scores, visible)


def kernel(phi_q, phi_k, visible):
    """Eq. 4: P_ij ∝ Φ(q_i)ᵀ Φ(k_j)."""
    return normalise(phi_q.double() @ for_each_query_head(phi_k, phi_q).mT * visible)


def visible(n_q, n_k, *, key_mask=None, causal=False, cu_seqlens=None):
    """Which query sees which key, `(B or 1, 1, N_q, N_k)`."""
    seen = torch.zeros(1 if key_mask is None else len(key_mask), 1, n_q, n_k, dtype=torch.bool)
    sequence = sequences_of(n_k, cu_seqlens)
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
    for real, sequence in zip(keep, sequences_of(len(keep), cu_seqlens), strict=True):
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


def sequences_of(n, cu_seqlens):
    """For each token its sequence, None outside of all."""
    if cu_seqlens is None:
        return [0] * n
    spans = list(enumerate(pairwise(cu_seqlens.tolist())))
    return [next((s for s, (lo, hi) in spans if lo <= j < hi), None) for j in range(n)]


def for_each_query_head(k, q):
    return k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def normalise(weight):
    total = weight.sum(-1, keepdim=True)
    return weight / total.masked_fill(total == 0, 1)


def normalise_exp(scores, visible):
    some = visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(~some, 0)
    return scores.softmax(-1) * some


def alone(formula):
    """Makes the oracle of a core from `formula(core, q, k, causal)`, the matrix of one sequence.

    The formula sees `(1, H, n, D)` in float64, the real tokens of one sequence and nothing else:
    where padding goes and what packing means is said here, once.
    """

    def oracle(core, q, k, *, key_mask=None, causal=False, cu_seqlens=None):
        k = for_each_query_head(k, q)
        batch, heads, n, _ = q.shape
        matrix = torch.zeros(batch, heads, n, n, dtype=torch.float64)
        for b, tokens in each_sequence(batch, n, key_mask, cu_seqlens):
            p = formula(core, q[b : b + 1, :, tokens].double(), k[b : b + 1, :, tokens], causal)
            matrix = matrix.index_put(
                (torch.tensor(b), torch.arange(heads)[:, None, None], tokens[:, None], tokens), p[0]
            )
        return matrix

    return oracle


def alone_out(formula):
    """The same for `formula(core, q, k, v, causal)`, the output, where v enters non-linearly."""

    def oracle(core, q, k, v, *, key_mask=None, causal=False, cu_seqlens=None):
        k = for_each_query_head(k, q)
        batch, heads, n, _ = q.shape
        out = torch.zeros(batch, heads, n, v.shape[3], dtype=torch.float64)
        for b, tokens in each_sequence(batch, n, key_mask, cu_seqlens):
            one = (x[b : b + 1, :, tokens].double() for x in (q, k, v))
            part = formula(core, *one, causal)
            out = out.index_put((torch.tensor(b), torch.arange(heads)[:, None], tokens), part[0])
        return out

    return oracle


def each_sequence(batch, n, key_mask, cu_seqlens):
    """(row, positions of its real tokens) for each sequence that has any."""
    sequence = torch.tensor([-1 if s is None else s for s in sequences_of(n, cu_seqlens)])
    for b in range(batch):
        keep = torch.ones(n, dtype=torch.bool) if key_mask is None else key_mask[b]
        for s in sorted(set(sequence.tolist()) - {-1}):
            tokens = (keep & (sequence == s)).nonzero()[:, 0]
            if len(tokens):
                yield b, tokens
