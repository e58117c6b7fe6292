"""Attention through a few landmarks or projected keys."""

import torch
import torch.nn.functional as F

from oracles.formulas import alone


@alone
def core_nystromformer(core, q, k, causal):
    n = q.shape[2]
    if n <= core.landmarks:
        return (core.scale * q @ k.mT).softmax(-1) + convolution(core.conv, n)
    segment = torch.arange(n) * core.landmarks // n
    mean = (segment == torch.arange(core.landmarks)[:, None]).double()
    mean = mean / mean.sum(1, keepdim=True)
    pairs = (q, mean @ k), (mean @ q, mean @ k), (mean @ q, k)
    f, a, b = ((core.scale * x @ y.mT).softmax(-1) for x, y in pairs)
    return f @ iterative_inverse(a) @ b + convolution(core.conv, n)


@alone
def core_linformer(core, q, k, causal):
    e, f = (p.double()[:, : q.shape[2]] for p in (core.project_keys, core.project_values))
    return (core.scale * q @ (e @ k).mT).softmax(-1) @ f


@alone
def core_skyformer(core, q, k, causal):
    n, m = q.shape[2], len(core.draws)
    x = torch.cat([q, k], 2)
    distance = (x.unsqueeze(3) - x.unsqueeze(2)).square().sum(-1)
    lifted = (-core.scale * distance / 2).exp()  # Eq. 4
    chosen = (core.draws.double() / 2**31 * n).floor().long()
    chosen = torch.cat([chosen[: m // 2], chosen[m // 2 :] + n])
    regular = lifted[:, :, chosen][..., chosen] + 0.1 * torch.eye(m, dtype=torch.float64)
    d = regular.sum(-1).pow(-0.5).diag_embed()
    inverse = d @ iterative_inverse(d @ regular @ d) @ d
    return (lifted[..., chosen] @ inverse @ lifted[:, :, chosen])[:, :, :n, n:]  # Eq. 5 and 6


def iterative_inverse(a):
    z = a.mT / torch.linalg.matrix_norm(a, 1)[..., None, None]
    for _ in range(6):
        az = a @ z
        z = (13 * z - 15 * z @ az + 7 * z @ az @ az - z @ az @ az @ az) / 4
    return z


def convolution(conv, n):
    """`(H, n, n)` the matrix of a depth-wise convolution."""
    if conv is None:
        return 0
    kernel = conv.weight.double()[:, 0, :, 0]
    shift = torch.arange(n) - torch.arange(n)[:, None]
    return F.pad(kernel, (n, n))[:, shift + kernel.shape[1] // 2 + n]
