"""What the attention of a model does while it runs: temperature, entropy and gap of every head.

`record` sees q and k in two places: hooks on the cores of this package, and the attention interface
of transformers. Both come just before the attention, read what it is about to read, and change
nothing: outputs stay the same to the bit, and afterwards nothing is left behind.

A measured forward pass adds to each layer O(N · D² + rows · N · D) for temperature and entropy, and
for the gap O(N · D²) where P has factors (LLN and feature maps) or else at most 3 · `GAP_PRODUCTS`
products with P, each about as dear as the attention itself. `every` and `layers` divide that. P is
measured in float32, as it is before dropout.
"""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lln.attention import Attention, LLNAttention, LLNDiagAttention
from lln.functional.checks import check_positive
from lln.functional.precision import no_autocast, upcast
from lln.functional.rows import all_real
from lln.functional.rows import rows as sequences
from lln.instruments.interface import Call, Unmeasurable, read, watching
from lln.instruments.matrix import AttentionMatrix
from lln.instruments.measures import entropy, spectral_gap, temperature
from lln.instruments.of_core import fixed_factors, matrix_of
from lln.instruments.recording import Capture, Recording
from lln.registry import entry

GAP_TOLERANCE = 1e-3  # a curve over training needs no more digits
GAP_PRODUCTS = 64


@contextmanager
def record(
    model: nn.Module,
    *,
    every: int = 1,
    layers: Iterable[int] | None = None,
    rows: int = 256,
    keep: bool = False,
) -> Iterator[Recording]:
    """Measures the attention of every layer and head while `model` runs.

    Example:
        with lln.instruments.record(model) as recording, torch.no_grad():
            model(x)
        recording.save("attention.jsonl")

    Args:
        model: one with cores of this package, or with the attention interface of transformers.
            A compiled model runs uncompiled meanwhile.
        every: measure the first forward pass, and from there each `every`-th.
        layers: the attentions to measure, in the order in which they run, from 0; all by default.
        rows: of P to sample for the entropy.
        keep: keep q, k and P of the last measured call, in `Recording.captures`.

    Raises:
        ValueError: nothing could be measured, or queries or keys are not finite.
    """
    probe = Probe(model, every=every, layers=layers, rows=rows, keep=keep)
    with probe.attached():
        yield probe.recording
    probe.check()


class Probe:
    """The hooks of a recording; arguments as in `record`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        layers: Iterable[int] | None = None,
        rows: int = 256,
        keep: bool = False,
    ) -> None:
        check_positive("every", every)
        check_positive("rows", rows)
        self.model, self.recording = model, Recording()
        self._every, self._rows, self._keep = every, rows, keep
        self._layers = None if layers is None else set(layers)
        self._names = {module: name for name, module in model.named_modules()}
        self._step = -1
        # How many attentions have run in this forward pass; None in one that is not measured, and
        # between them, where gradient checkpointing runs layers again.
        self._calls: int | None = None

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Measures inside, and leaves nothing behind."""
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:  # compiled code would run no hooks
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for module in self._names:
                if isinstance(module, Attention):
                    hook = module.register_forward_pre_hook(self._see_core, with_kwargs=True)
                    stack.callback(hook.remove)
            # Before the hook of a core that is itself the model.
            begin = self.model.register_forward_pre_hook(self._begin, prepend=True)
            stack.callback(begin.remove)
            stack.callback(self.model.register_forward_hook(self._end).remove)
            stack.enter_context(watching(self._see_interface))
            yield

    def _begin(self, model: nn.Module, args: Any) -> None:
        self._step += 1
        self._calls = None if self._step % self._every else 0

    def _end(self, model: nn.Module, args: Any, output: Any) -> None:
        if self._calls is None:
            return
        self.check()
        if self.recording.skipped and self._step == 0:
            warnings.warn(f"layers that are not measured: {self._reasons()}", stacklevel=2)
        self._calls = None

    def check(self) -> None:
        """Raises if nothing was recorded, and says why."""
        if self.recording.rows:
            return
        name = type(self.model).__name__
        if self._step < 0:
            why = f"no forward pass of {name} ran"
        elif self.recording.skipped:
            why = self._reasons()
        elif self._calls:
            why = f"{name} has the attention layers 0 to {self._calls - 1}, not {self._layers}"
        else:
            why = (
                f"{name} has no attention core of lln, and does not fetch its attention from the "
                "attention interface of transformers"
            )
        raise ValueError(f"nothing was recorded: {why}")

    def _reasons(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in self.recording.skipped.items())

    def _see_core(self, core: Attention, args: Any, kwargs: dict[str, Any]) -> None:
        self._see(core, lambda: _read_core(core, *args, **kwargs))

    def _see_interface(self, name: str, module: nn.Module, *call: Any) -> None:
        # A layer that attends by a core of ours is seen by the hook on that core.
        if not any(isinstance(part, Attention) for part in module.modules()):
            self._see(module, lambda: read(name, module, *call))

    def _see(self, module: nn.Module, read_call: Callable[[], Call]) -> None:
        if self._calls is None or module not in self._names:
            return
        layer, name = self._calls, self._names[module] or type(module).__name__
        self._calls += 1
        if self._layers is not None and layer not in self._layers:
            return
        try:
            self._measure(layer, name, read_call())
        except Unmeasurable as reason:
            self.recording.skipped[name] = str(reason)

    @torch.no_grad()
    def _measure(self, layer: int, name: str, call: Call) -> None:
        core, q, k, key_mask, causal = call = _prepare(call)
        if not (_finite(q, key_mask) and _finite(k, key_mask)):
            raise ValueError(f"queries or keys of layer {layer} ({name}) are not finite")
        with no_autocast(q.device):
            matrix = matrix_of(core, q, k, key_mask=key_mask, causal=causal)
            columns = self._measures(call, matrix)
        place = {"step": self._step, "layer": layer, "name": name}
        n = round(matrix.keep.sum(1).double().mean().item())
        for head in range(q.shape[1]):
            numbers = {measure: _number(column[head]) for measure, column in columns.items()}
            self.recording.rows.append({**place, "head": head, "n": n, **numbers})
        if self._keep:
            self.recording.captures[layer] = Capture(name, core, q, k, key_mask, causal, matrix)

    def _measures(self, call: Call, matrix: AttentionMatrix) -> dict[str, list[float]]:
        """The mean of each measure over sequences, by head."""
        core, q, k, key_mask, causal = call
        unknown = torch.full(q.shape[:2], math.nan)
        heat = temperature(core, q, k, key_mask=key_mask, causal=causal, rows=self._rows)
        bits, error, gap = unknown, unknown, unknown
        if entry(core.name).row_stochastic:
            sampled = entropy(matrix, rows=self._rows)
            bits, error = sampled.bits, sampled.standard_error
            if q.shape[2] == k.shape[2]:
                gap = spectral_gap(
                    matrix, tolerance=GAP_TOLERANCE, max_products=GAP_PRODUCTS, singular=False
                ).gap
        found = {
            "temperature": heat.exact,
            "temperature_paper": heat.paper,
            "entropy": bits,
            "gap": gap,
        }
        if isinstance(core, (LLNAttention, LLNDiagAttention)):
            alpha, beta, _ = fixed_factors(core, q, k, key_mask=key_mask, causal=causal)
            # Statistics of a whole batch give one row, or one number, for all sequences and heads.
            found["alpha"] = alpha.expand(q.shape[:2])
            beta = beta.expand(k.shape[:2])
            found["beta"] = beta.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        # A sequence of one token has no temperature, and leaves the mean to the others.
        finite = {measure: x.where(x.isfinite(), math.nan) for measure, x in found.items()}
        means = {measure: x.nanmean(0).tolist() for measure, x in finite.items()}
        # Errors of different sequences are independent: their variances add up.
        means["entropy_error"] = (error.square().sum(0).sqrt() / len(error)).tolist()
        return means


def _read_core(
    core: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Call:
    """The arguments of a core; packed sequences become padded ones, which attend alike."""
    if not core.linear_in_values:
        raise Unmeasurable(f"{core.name} is not linear in v and has no attention matrix")
    if cu_seqlens is not None:
        real = all_real(q.shape[0], q.shape[2], q.device) if key_mask is None else key_mask
        layout = sequences(real, cu_seqlens)
        q, k, key_mask = layout.take(q), layout.take(k), layout.keep
    return Call(core, q, k, key_mask, causal)


def _prepare(call: Call) -> Call:
    """In float32, without gradients and without sequences that have no real token."""
    core, q, k, key_mask, causal = call
    q, k = upcast(q.detach()), upcast(k.detach())
    if key_mask is not None:
        real = key_mask.any(1)
        if not real.all():
            q, k, key_mask = q[real], k[real], key_mask[real]
    if not (q.numel() and k.numel()):
        raise Unmeasurable("there was no real token")
    return Call(core, q, k, key_mask, causal)


def _finite(x: Tensor, key_mask: Tensor | None) -> bool:
    """Padding may hold anything."""
    finite = x.isfinite().all(-1).all(1)  # (B, N)
    if key_mask is not None and key_mask.shape == finite.shape:
        finite = finite | ~key_mask
    return bool(finite.all())


def _number(x: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return x if math.isfinite(x) else None
