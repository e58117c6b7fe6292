"""TNN: tokens mixed by Toeplitz matrices (Qin et al. 2023, arXiv 2305.04749), O(N log N).

The gated Toeplitz unit, out = (SiLU(x W_u) ⊙ T SiLU(x W_v)) W_o, where each channel has its own
matrix T_ij = λ^|i−j| t_(i−j). A small network, the relative position encoder, makes t from the
position i − j; λ^|i−j| is the exponential decay bias. There are no queries and keys: weights depend
on where tokens stand, not on what they are. T is applied by FFT and never written out.

Deviations:
    An FFT spreads rounding over the whole sequence, so that the future would change the past, if
    only in its last bits. The causal form is cut into transforms of which none reads a later token
    than it gives to, which costs O(N log² N).
    The authors add 1e-8 to the root mean square in the encoder; here 1e-16 is under the root.

Sizes, decay and the plain positions as input of the encoder are those of the authors' language
models.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention.sequence import SequenceMixer
from lln.functional.checks import check_positive
from lln.functional.precision import no_autocast, upcast
from lln.registry import register

BLOCK = 16
"""Tokens up to which a Toeplitz matrix is faster than an FFT."""


@register("tnn", paper="Qin et al. 2023", complexity="O(N log N)", row_stochastic=False)
class TNNMixer(SequenceMixer):
    """Gated unit that mixes tokens by their relative positions alone.

    Args:
        dim: C.
        heads: not used: each channel has its own matrix.
        expansion: size of gate and values, in multiples of `dim`.
        encoder_dim: width of the relative position encoder.
        encoder_layers: its layers between the first and the last.
        decay: λ, above 0 and at most 1.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        expansion: int = 3,
        encoder_dim: int = 64,
        encoder_layers: int = 6,
        decay: float = 0.99,
    ) -> None:
        super().__init__(dim, heads)
        check_positive("expansion", expansion)
        check_positive("encoder_dim", encoder_dim)
        check_positive("encoder_layers", encoder_layers)
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {decay}")
        self.decay = decay
        hidden = expansion * dim
        self.gate = nn.Linear(dim, hidden)
        self.value = nn.Linear(dim, hidden)
        self.encoder = nn.Sequential(UpcastLinear(1, encoder_dim))
        for size in [encoder_dim] * encoder_layers + [hidden]:
            norm = nn.RMSNorm(encoder_dim, eps=1e-16, elementwise_affine=False)
            self.encoder.extend([norm, nn.ReLU(), UpcastLinear(encoder_dim, size)])
        self.out = nn.Linear(hidden, dim)

    def mix(self, x: Tensor, keep: Tensor, *, causal: bool) -> Tensor:
        n, gate, v = x.shape[1], F.silu(self.gate(x)), F.silu(self.value(x))
        v = upcast(v).masked_fill(~keep.unsqueeze(2), 0).mT  # (B, hidden, N)
        position = torch.arange(0 if causal else 1 - n, n, dtype=v.dtype, device=v.device)
        with no_autocast(x.device):
            t = self.encoder(position.unsqueeze(1)).mT * self.decay ** position.abs()
            mixed = (causal_toeplitz if causal else toeplitz)(t, v).mT
        out: Tensor = self.out(gate * mixed.to(gate.dtype))
        return out


class UpcastLinear(nn.Linear):
    """A linear layer in float32: half precision cannot tell 2048 from 2049."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, upcast(self.weight), upcast(self.bias))


def toeplitz(t: Tensor, v: Tensor) -> Tensor:
    """y_i = Σ_j t_(i−j) v_j, O(N log N).

    Args:
        t: `(C, 2N − 1)`, from i − j = 1 − N to N − 1.
        v: `(B, C, N)`.
    """
    n = v.shape[-1]
    return _convolve(t, v, 2 * n)[..., n - 1 : 2 * n - 1]


def causal_toeplitz(t: Tensor, v: Tensor) -> Tensor:
    """y_i = Σ_(j ≤ i) t_(i−j) v_j, O(N log² N); not even rounding tells i of a token after it.

    Blocks mix their own tokens, and each second block receives from the one before it. Then blocks
    of twice the size do the latter, and so on.

    Args:
        t: `(C, N)`, from i − j = 0 to N − 1.
        v: `(B, C, N)`.
    """
    n, length, size = v.shape[-1], BLOCK, BLOCK
    while length < n:
        length *= 2
    t, v = F.pad(t, (0, length - n)), F.pad(v, (0, length - n))
    lower = F.pad(t[:, :size], (size - 1, 0)).unfold(1, size, 1).flip(2)  # (C, i, j): t_(i−j)
    y: Tensor = (v.unflatten(2, (-1, size)) @ lower.mT).flatten(2)
    while size < length:
        before = v.unflatten(2, (-1, 2, size))[..., 0, :]  # (B, C, pairs, size)
        received = _convolve(t[:, None, : 2 * size], before, 2 * size)[..., size:]
        y = y + F.pad(received, (size, 0)).flatten(2)
        size *= 2
    return y[..., :n]


def _convolve(t: Tensor, v: Tensor, length: int) -> Tensor:
    """Circular convolution over `length` places."""
    spectrum = torch.fft.rfft(t, length) * torch.fft.rfft(v, length)
    out: Tensor = torch.fft.irfft(spectrum, length)
    return out
