"""What the benchmarks compare: attentions as functions of q, k and v."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

import lln
from lln.bench.peers import PEERS, refuse_rest
from lln.bench.references import REFERENCES, Attend, Reference
from lln.matching import Matcher
from lln.registry import Entry, entry

CAUSAL = "_causal"  # the causal form of a case is the case of this longer name
CALIBRATED_ON = 256  # tokens, for the stored statistics of causal LLN


class Inputs(NamedTuple):
    """q, k, v and the gradient of the output, `(B, H, N, D)`."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        label: how tables call it.
        make: the attention for so many heads, of such a dimension, for sequences of such a length;
            a ValueError says what it cannot be made for.
    """

    label: str
    make: Callable[[int, int, int], Attend]


def inputs(
    batch: int,
    heads: int,
    n: int,
    head_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    std: float = 1.0,
    seed: int = 0,
) -> Inputs:
    """Gaussian inputs; q and k have standard deviation `std`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, n, head_dim)
    q, k, v, grad = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(4))
    q, k, v = (x.mul_(s).to(device).requires_grad_() for x, s in ((q, std), (k, std), (v, 1.0)))
    return Inputs(q, k, v, grad.to(device))


def call(case: Case, x: Inputs, *, backward: bool) -> Callable[[], object]:
    """The case's forward pass without gradients, or its forward and backward pass."""
    _, heads, n, head_dim = x.q.shape
    attend = case.make(heads, head_dim, n)
    leaves = [x.q, x.k, x.v]
    if isinstance(attend, nn.Module):
        leaves += attend.to(x.q).parameters()

    @torch.no_grad()
    def forward() -> Tensor:
        return attend(x.q, x.k, x.v)

    def both() -> list[Tensor | None]:
        # As training has them: each gradient in memory of its own, laid out like its tensor.
        for leaf in leaves:
            leaf.grad = None
        attend(x.q, x.k, x.v).backward(x.grad)
        return [leaf.grad for leaf in leaves]  # not every mechanism reads q, k and v

    return both if backward else forward


def names() -> list[str]:
    """All that can be measured: references, other people's code, the registered mechanisms."""
    return [*REFERENCES, *PEERS, *lln.available()]


def has_causal_form(name: str) -> bool:
    """Whether `name` + `CAUSAL` is a case."""
    if name in REFERENCES:
        return REFERENCES[name].causal
    return name not in PEERS and entry(name).causal


def find(name: str) -> Case:
    """The case of that name."""
    base = name.removesuffix(CAUSAL)
    causal = base != name
    if causal and not has_causal_form(base):
        raise ValueError(f"{base} has no causal form")
    if base in REFERENCES:
        case = _reference(REFERENCES[base], causal)
    elif base in PEERS:
        case = Case(PEERS[base].label, PEERS[base].make)
    else:
        case = _mechanism(entry(base), causal)
    return Case(f"causal {case.label}", case.make) if causal else case


def _reference(reference: Reference, causal: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference.attend(q, k, v, True) if causal else reference.attend(q, k, v)

    def make(heads: int, head_dim: int, n: int) -> Attend:
        refuse_rest(n, reference.multiple)
        return attend

    return Case(reference.label, make)


def _mechanism(found: Entry, causal: bool) -> Case:
    def make(heads: int, head_dim: int, n: int) -> Attend:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if found.kind == "mixer":
                dim = heads * head_dim
                mixer = lln.build(found.name, dim=dim, heads=heads, max_len=n)
                return _OnTokens(mixer, causal)
            return _OnHeads(build_core(found.name, heads, head_dim, n), causal)

    label = found.paper if found.kind == "core" else f"{found.paper}, with projections"
    return Case(label, make)


def build_core(name: str, heads: int, head_dim: int, n: int) -> nn.Module:
    """A core whose stored statistics, if it has any, are those of `inputs`."""
    core = lln.build_core(name, heads=heads, head_dim=head_dim, max_len=n)
    if any(isinstance(part, Matcher) for part in core.modules()):
        x = inputs(1, heads, CALIBRATED_ON, head_dim)
        with lln.matching.calibrating(core), torch.no_grad():
            core(x.q, x.k, x.v)
    return core


class _OnHeads(nn.Module):
    """A core in one of its forms."""

    def __init__(self, core: nn.Module, causal: bool) -> None:
        super().__init__()
        self.core, self.causal = core, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self.core(q, k, v, causal=self.causal)
        return out


class _OnTokens(nn.Module):
    """A mixer called like a core: the heads of q are its tokens' features, k and v are not read."""

    def __init__(self, mixer: nn.Module, causal: bool) -> None:
        super().__init__()
        self.mixer, self.causal = mixer, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed: Tensor = self.mixer(q.transpose(1, 2).flatten(2), causal=self.causal)
        heads: Tensor = mixed.unflatten(2, q.shape[1::2])
        return heads.transpose(1, 2)
