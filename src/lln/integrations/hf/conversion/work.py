"""A conversion in the middle of its work, and the file from which it can go on."""

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lln.integrations.hf.calibrate import calibrate
from lln.integrations.hf.conversion.descent import Descent
from lln.integrations.hf.conversion.fidelity import Fidelity, embeddings, fidelity
from lln.integrations.hf.conversion.forward import hidden_states, inputs_of
from lln.integrations.hf.conversion.imitation import beside_softmax
from lln.integrations.hf.conversion.original import load_original
from lln.integrations.hf.conversion.passages import passages
from lln.integrations.hf.conversion.plan import Plan, Stage
from lln.integrations.hf.conversion.saved import Saved, read
from lln.integrations.hf.length import longest_input
from lln.integrations.hf.swap import apply
from lln.matching import Matcher, UncalibratedWarning
from lln.registry import entry

SAVE_EVERY = 60.0  # seconds
OURS = "attention_core."
"""In the names of what `apply` adds to a model; the rest changes in fine-tuning alone."""

Bar = Callable[[str, int], AbstractContextManager[Callable[[], object]]]
"""Shows progress: takes what is done and how many steps, gives what to call after each step."""


class Work:
    """The model on its way from one attention to another; arguments as in `convert`.

    Attributes:
        model: as far as it is.
        tokenizer: the original's.
        layers: the paths of the attention layers.
        planned: the names of all stages.
        stages: those that are done.
    """

    def __init__(
        self,
        source: Path,
        lines: list[str],
        plan: Plan,
        device: torch.device | str,
        unfinished: Path | None,
    ) -> None:
        self.plan, self._unfinished = plan, unfinished
        self._original, self.tokenizer = load_original(source)
        self._original.to(device)
        length = min(plan.length, self.tokenizer.model_max_length, longest_input(self._original))
        self._text = passages(lines, self.tokenizer, length)
        self._judged = self._text.judged(size=plan.batch_size)
        self._expected = embeddings(self._original, self._judged)
        learns = getattr(entry(plan.attention).cls, "learns_maps", False)
        options = plan.options if learns or plan.steps == 0 else {**plan.options, "maps": True}
        self.model = apply(copy.deepcopy(self._original), plan.attention, **options)
        parts = dict(self.model.named_modules())
        self.layers = [path for path in parts if hasattr(parts[path], "attention_core")]
        self.planned = [name for name, wanted in self._wanted().items() if wanted]
        self._task = {
            "model": str(source.resolve()),
            "text": self._text.checksum,
            **plan.to_dict(),
        }
        self.stages: list[Stage] = []
        self._changing = OURS
        self._step, self._seconds, self._descent = 0, 0.0, dict[str, Tensor]()
        self._go_on()
        self._since = self._saved_at = time.monotonic()

    def do(self, name: str, bar: Bar) -> None:
        """The next stage, and then a measurement."""
        plan, cores = self.plan, [x for n, x in self.model.named_parameters() if OURS in n]
        if name == "calibration":
            self._calibrate(bar)
        elif name == "distillation":
            self._descend(name, Descent(cores, plan.rate, plan.steps), self._imitate, bar)
        elif name == "fine-tuning":
            self._changing = ""
            weights = Descent(self.model.parameters(), plan.finetune_rate, plan.finetune_steps)
            self._descend(name, weights, self._resemble, bar)
        seconds = self._spent()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncalibratedWarning)  # as the next stage will be
            found = fidelity(self.model, self._judged, self._expected)
        self.stages.append(Stage(name, seconds, found))
        self._step, self._seconds, self._descent = 0, 0.0, {}
        self._since = time.monotonic()
        self._save()

    def _wanted(self) -> dict[str, bool]:
        stores = any(
            isinstance(part, Matcher) and hasattr(part, "stored") for part in self.model.modules()
        )
        return {
            "swap": True,
            "calibration": stores and self.plan.calibration_batches > 0,
            "distillation": self.plan.steps > 0,
            "fine-tuning": self.plan.finetune_steps > 0,
        }

    def _batch(self, number: int) -> Tensor:
        return self._text.batch(number, size=self.plan.batch_size, seed=self.plan.seed)

    def _calibrate(self, bar: Bar) -> None:
        with bar("calibration", self.plan.calibration_batches) as advance:

            def batches() -> Iterator[dict[str, Tensor]]:
                for i in range(self.plan.calibration_batches):
                    yield inputs_of(self.model, self._batch(i))
                    advance()

            calibrate(self.model, batches())

    def _imitate(self, ids: Tensor) -> None:
        """Gradients by which each core does what softmax would do with the input of its layer."""
        with beside_softmax(learn=True), torch.no_grad():
            hidden_states(self.model, ids)

    def _resemble(self, ids: Tensor) -> None:
        """Gradients by which the whole model gives the last hidden states of the original."""
        with torch.no_grad():
            target = hidden_states(self._original, ids)
        error = (hidden_states(self.model, ids) - target).square().sum()
        (error / target.square().sum()).backward()

    def _descend(
        self, name: str, descent: Descent, add_gradients: Callable[[Tensor], None], bar: Bar
    ) -> None:
        descent.restore(self._descent)
        with bar(name, descent.steps) as advance:
            for _ in range(self._step):  # in an earlier call
                advance()
            while self._step < descent.steps:
                descent.step(self._step, partial(add_gradients, self._batch(self._step)))
                self._step += 1
                if time.monotonic() - self._saved_at >= SAVE_EVERY:
                    self._descent = descent.state()
                    self._save()
                advance()

    def _spent(self) -> float:
        """Seconds on this stage, in all calls."""
        return self._seconds + time.monotonic() - self._since

    def _named(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if self._unfinished is None:
            return
        tensors = {f"model.{n}": x for n, x in self._named().items() if self._changing in n}
        tensors |= {f"descent.{name}": x for name, x in self._descent.items()}
        stages = [asdict(stage) for stage in self.stages]
        saved = Saved(self._task, stages, self._step, self._spent(), tensors)
        saved.write(self._unfinished)

    def _go_on(self) -> None:
        """Takes up what an earlier call left."""
        saved = None if self._unfinished is None else read(self._unfinished, self._task)
        if saved is None:
            return
        self.stages = [
            Stage(x["name"], x["seconds"], Fidelity(**x["fidelity"])) for x in saved.stages
        ]
        self._step, self._seconds = saved.step, saved.seconds
        named = self._named()
        with torch.no_grad():
            for name, x in saved.tensors.items():
                kind, _, rest = name.partition(".")
                if kind == "model":
                    named[rest].copy_(x)
                else:
                    self._descent[rest] = x
