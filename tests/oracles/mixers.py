"""Mechanisms that start from tokens."""

import torch

from oracles.formulas import same_block, softmax, visible


def mixer_gau(mixer, x, causal):
    n, size, s = x.shape[1], mixer.chunk_size, mixer.sizes[2]
    u, v, z = torch.nn.functional.silu(mixer.expand(x)).split(mixer.sizes, -1)
    token, pair = torch.arange(n).double(), torch.arange(s // 2).double()
    turn = torch.polar(torch.ones(n, s // 2).double(), token[:, None] * 1e4 ** (-2 * pair / s))
    turned = []
    for scale, offset in zip(mixer.scale, mixer.offset, strict=True):
        pairs = torch.complex(*(z * scale + offset).chunk(2, -1)) * turn
        turned.append(torch.cat([pairs.real, pairs.imag], -1))
    distance, chunk = torch.arange(n) - torch.arange(n)[:, None], torch.arange(n) // size
    bias = mixer.position_bias[distance.clamp(1 - size, size - 1) + size - 1]
    near = (turned[0] @ turned[1].mT / size + bias).relu() ** 2 * same_block(n, n, size)[0, 0]
    near, far = (near.tril(), chunk < chunk[:, None]) if causal else (near, torch.ones(n, n))
    mean = turned[2] @ turned[3].mT * far / far.sum(1, keepdim=True).clamp(min=1)
    return mixer.out(u * ((near + mean) @ v))


def mixer_tnn(mixer, x, causal):
    position = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    first, *others = (layer for layer in mixer.encoder if isinstance(layer, torch.nn.Linear))
    t = first(position.double()[..., None])  # (n, n, ·)
    for layer in others:
        t = layer((t / (t.square().mean(-1, keepdim=True) + 1e-16).sqrt()).relu())
    t = t * (mixer.decay ** position.abs().double())[..., None]
    if causal:
        t = t * (position >= 0)[..., None]
    u, v = (torch.nn.functional.silu(layer(x)) for layer in (mixer.gate, mixer.value))
    return mixer.out(u * torch.einsum("ijc,bjc->bic", t, v))


def mixer_transnormer_t1(mixer, x, causal):
    q, k, v = heads_of(mixer, x)
    if mixer.diagonal:
        scores = (q @ k.mT / q.shape[3] ** 0.5).relu()
        weight = scores * same_block(x.shape[1], x.shape[1], mixer.block_size, causal=causal)
    else:
        q, k = (x.where(x > 0, x.exp() - 1) for x in (q, k))
        weight = q @ k.mT * visible(x.shape[1], x.shape[1], causal=causal)
    return mixer.out(rms_norm(tokens_of(weight @ v)))


def mixer_transnormer_t2(mixer, x, causal):
    q, k, v = heads_of(mixer, x)
    if mixer.diagonal:
        block = same_block(x.shape[1], x.shape[1], mixer.block_size, causal=causal)
        return mixer.out(tokens_of(softmax(q, k, block) @ v))
    q, k = (x.where(x > 0, x.exp() - 1) + 1 for x in (q, k))
    weight = q @ k.mT * visible(x.shape[1], x.shape[1], causal=causal)
    return mixer.out(rms_norm(tokens_of(weight @ v)))


def heads_of(mixer, x):
    """q, k and v `(B, H, N, D)`."""
    projections = (mixer.query(x), mixer.key(x), mixer.value(x))
    return [p.unflatten(2, (mixer.heads, -1)).transpose(1, 2) for p in projections]


def tokens_of(heads):
    return heads.transpose(1, 2).flatten(2)


def rms_norm(x):
    square = x.square().mean(-1, keepdim=True)
    # The root of 0 has no gradient, but x / root is then 0 whatever the root.
    return x / (square.where(square > 0, 1).sqrt() + 1e-8)
