"""What a mechanism must do before its speed means anything.

These are the clauses of tests/test_contract.py that need neither the tests nor an oracle for every
mechanism, so that an installed package can run them: the tests call the same functions, with more
inputs, and hold every mechanism to its oracle.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

import lln
from lln.bench.cases import CAUSAL
from lln.bench.references import (
    REFERENCES,
    Reference,
    block_formula,
    lln_formula,
    softmax_formula,
)
from lln.matching import UncalibratedWarning
from lln.registry import Entry, entry

HEADS, DIM, LONGEST = 4, 8, 128
TOKENS = 13
FORMULA_TOKENS = 300  # several chunks of 64, the last of which is not full

# Small enough that short sequences have several blocks, windows, landmarks …
SMALL = {
    "landmarks": 4,
    "rank": 5,
    "block_size": 5,
    "chunk_size": 5,
    "buckets": 4,
    "window": 4,
    "past": 2,
}
MASKS = {
    "left": [False] * 4 + [True] * 9,
    "right": [True] * 9 + [False] * 4,
    "holes": [True, False, True, True, False, True, True, True, False, True, True, False, True],
}
Clause = tuple[str, Callable[[], None]]


def gate(
    names: Iterable[str],
    *,
    device: torch.device | str = "cpu",
    advance: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """Which of the cases are red, and why. Other people's code is taken as it is.

    Args:
        names: of references, peers or mechanisms; the causal forms belong to their mechanism.
        device: where the clauses run.
        advance: called once for each name.
    """
    found = {}
    for name in names:
        if reason := red(name.removesuffix(CAUSAL), device=device):
            found[name] = reason
        advance()
    return found


def red(name: str, *, device: torch.device | str = "cpu") -> str | None:
    """The first clause that a case breaks, and how; None if it keeps them all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncalibratedWarning)  # assumed statistics will do here
        for title, clause in _clauses(name, torch.device(device)):
            try:
                clause()
            except Exception as error:  # whatever goes wrong, it is not to be timed
                lines = str(error).strip().splitlines() or [type(error).__name__]
                return f"{title}: {' '.join(line.strip() for line in lines[:4] if line.strip())}"
    return None


def _clauses(name: str, device: torch.device) -> Iterator[Clause]:
    if name in REFERENCES:
        yield "formula", partial(_reference_is_its_formula, REFERENCES[name], device)
    elif name in lln.available():
        yield from _of_mechanism(entry(name), device)


def _of_mechanism(found: Entry, device: torch.device) -> Iterator[Clause]:
    forms = [False, True] if found.causal else [False]
    mixer = build(found.name).double().to(device).eval()
    x = _tokens(2, TOKENS, device)
    for causal in forms:
        form = " (causal)" if causal else ""
        for title, mask in MASKS.items():
            arguments = (mixer, x, torch.tensor(mask, device=device), causal)
            yield f"padding {title}{form}", partial(padding_is_left_out, *arguments)
            yield f"junk {title}{form}", partial(padding_may_hold_anything, *arguments)
        yield f"batch mates{form}", partial(batch_mates_are_strangers, mixer, x, causal)
        if found.name in FORMULAS:
            yield f"formula{form}", partial(_core_is_its_formula, found.name, causal, device)
        else:
            yield f"gradients{form}", partial(gradients_are_slopes, mixer, x, causal)
    if found.causal:
        long = _tokens(1, 80, device)
        for present in (0, 37, 63, 64):
            yield "future", partial(the_future_is_unseen, mixer, long, present, 1e3)


def padding_is_left_out(mixer: nn.Module, x: Tensor, mask: Tensor, causal: bool) -> None:
    """A padded sequence is the short one alone; x is `(2, N, C)`, of which the first is padded."""
    key_mask = torch.stack([mask, torch.ones_like(mask)])
    padded = mixer(x, key_mask=key_mask, causal=causal)
    for row, alone in ((padded[:1, mask], x[:1, mask]), (padded[1:], x[1:])):
        assert_close(row, mixer(alone, causal=causal), rtol=1e-9, atol=1e-10)


def padding_may_hold_anything(mixer: nn.Module, x: Tensor, mask: Tensor, causal: bool) -> None:
    """What stands at padding changes no bit."""
    x, key_mask = x[:1], mask[None]
    clean = mixer(x, key_mask=key_mask, causal=causal)[:, mask]
    for junk in (1e4, torch.nan, torch.inf):
        dirty = x.masked_fill(~mask[:, None], junk)
        assert_identical(mixer(dirty, key_mask=key_mask, causal=causal)[:, mask], clean)


def batch_mates_are_strangers(mixer: nn.Module, x: Tensor, causal: bool) -> None:
    """The other sequence of a batch of two changes no bit."""
    alone = mixer(x, causal=causal)[0]
    for mate in (-30 * x[0], torch.nan, torch.inf):
        other = x.clone()
        other[1] = mate
        assert_identical(mixer(other, causal=causal)[0], alone)


def the_future_is_unseen(mixer: nn.Module, x: Tensor, present: int, outlier: float) -> None:
    """Tokens after `present` change no bit of a causal past, and change what comes after."""
    changed = x.clone()
    changed[:, present + 1 :] = outlier * x[:, present + 1 :].flip(2)
    before, after = (mixer(tokens, causal=True) for tokens in (x, changed))
    assert_identical(after[:, : present + 1], before[:, : present + 1])
    if torch.equal(after[:, present + 1 :], before[:, present + 1 :]):
        raise AssertionError("a token does not even see itself")


def gradients_are_slopes(mixer: nn.Module, x: Tensor, causal: bool) -> None:
    """The gradient of x is what differences of outputs say, in float64."""
    x = x[:1].detach().requires_grad_()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the direction in which the slope is taken
        torch.autograd.gradcheck(lambda x: mixer(x, causal=causal), x, fast_mode=True)


def assert_identical(actual: Tensor, expected: Tensor) -> None:
    """Bit by bit."""
    assert_close(actual, expected, rtol=0, atol=0)


def build(name: str, **more: Any) -> nn.Module:
    """A mixer that has left its start, with blocks, windows … that fit short sequences."""
    sizes = {"dim": HEADS * DIM, "heads": HEADS, "max_len": LONGEST}
    return _build(lln.build, name, **{**sizes, **more})


def build_core(name: str, **more: Any) -> nn.Module:
    """The same for a core."""
    sizes = {"heads": HEADS, "head_dim": DIM, "max_len": LONGEST}
    return _build(lln.build_core, name, **{**sizes, **more})


def _build(builder: Callable[..., nn.Module], name: str, **options: Any) -> nn.Module:
    small = {key: value for key, value in SMALL.items() if key in entry(name).options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = builder(name, **{**small, **options})
        with torch.no_grad():  # a bias of 0 would hide what it leaks into
            for parameter in module.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def _tokens(batch: int, n: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, n, HEADS * DIM)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)


def _heads(n: int, head_dim: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 1, HEADS, n, head_dim, generator=generator, dtype=torch.float64)
    return [part.requires_grad_() for part in x.to(device)]


def _reference_is_its_formula(reference: Reference, device: torch.device) -> None:
    if reference.formula is None:
        return
    x = [part.float() for part in _heads(128, 64, device)]
    for causal in [False, True] if reference.causal else [False]:
        form = (True,) if causal else ()
        # float32, since the authors' eps is meant for it.
        assert_close(reference.attend(*x, *form), reference.formula(*x, *form), rtol=0, atol=1e-4)


def _core_is_its_formula(name: str, causal: bool, device: torch.device) -> None:
    core = build_core(name).double().to(device).eval()
    x = _heads(FORMULA_TOKENS, DIM, device)
    actual, expected = core(*x, causal=causal), FORMULAS[name](core, *x, causal)
    assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    weight = torch.cos(expected.detach())  # any that is not constant
    wanted = torch.autograd.grad(expected, x, weight)
    assert_close(torch.autograd.grad(actual, x, weight), wanted, rtol=1e-7, atol=1e-8)


def _lln(core: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    found = core.matcher(q, k, causal=causal)
    shift = 0.0 if found.key_shift is None else found.key_shift.unsqueeze(2)
    return lln_formula(
        q, k, v, causal, found.alpha[..., None, None], found.beta[..., None, None], shift
    )


def _block_diag(core: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return block_formula(q, k, v, causal, core.scale, core.block_size)


# Of a core and its inputs, in O(N²). α and β, which are not differentiated, are the core's own.
FORMULAS: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda core, q, k, v, causal: softmax_formula(q, k, v, causal, core.scale),
    "block_diag": _block_diag,
    "lln": _lln,
    "lln_diag": lambda *x: (_lln(*x) + _block_diag(*x)) / 2,
}
