"""What an experiment is: mixers and seeds to compare, and everything else held equal.

`lln.train.reading` makes these from a TOML file and from `key=value` on the command line.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from lln.train.inputs import (
    ArenaTask,
    Corpus,
    Pictures,
    Sentences,
    Sequences,
    check_not_negative,
    check_positive,
)

Norm = Literal["post", "pre"]
Pooling = Literal["first", "mean"]
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["linear", "cosine", "constant"]


@dataclass(frozen=True)
class Model:
    """The encoder, with the names of `lln.models.EncoderConfig`; by default RoBERTa-base."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    norm: Norm = "post"
    positions: Literal["learned", "none"] = "learned"
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        check_positive(
            self, "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"
        )


@dataclass(frozen=True)
class SequenceModel(Model):
    """An encoder of which one vector is classified.

    Attributes:
        pooling: what is classified: the `first` token, or the `mean` over the real ones.
    """

    pooling: Pooling = "mean"


@dataclass(frozen=True)
class ImageModel(Model):
    """An encoder of images, by default ViT-base.

    Attributes:
        patch_size: pixels on a side of the squares that become tokens.
        pooling: what is classified: the `first` token, which is no patch, or the `mean` over
            patches.
    """

    norm: Norm = "pre"
    patch_size: int = 16
    pooling: Pooling = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "patch_size")


@dataclass(frozen=True)
class Training:
    """How a model is trained; by default as fairseq trains RoBERTa-base.

    Attributes:
        steps: updates of the weights; give these or `epochs`.
        epochs: passes over the data.
        batch_size: sequences of an update, over all processes and accumulated passes: the same
            command computes the same on one machine and on many.
        accumulation: forward passes of which an update sums the gradients.
        warmup: share of the steps in which the learning rate rises.
        schedule: how it falls afterwards.
        clip: norm to which gradients are clipped; 0 does not clip.
        precision: of autocast. fp16 scales the loss, and needs a GPU.
        gradient_checkpointing: compute activations again instead of keeping them.
        compile: run the model through torch.compile.
        workers: processes that load data.
        log_every: steps from one line of metrics to the next.
        eval_every: steps from one evaluation to the next; the last step is always evaluated.
        save_every: steps from one checkpoint to the next.
        keep: so many checkpoints.
        measure_every: steps from one measurement of the attention to the next; 0 is never.
        patience: stop after so many evaluations without a new best; 0 never stops.
    """

    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 2048
    accumulation: int = 1
    learning_rate: float = 5e-4
    warmup: float = 0.08
    schedule: Schedule = "linear"
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-6
    clip: float = 0.0
    precision: Precision = "fp32"
    gradient_checkpointing: bool = False
    compile: bool = False
    workers: int = 0
    log_every: int = 50
    eval_every: int = 1000
    save_every: int = 1000
    keep: int = 2
    measure_every: int = 0
    patience: int = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("training needs either steps or epochs, and not both")
        if not (self.steps or self.epochs or 0) > 0:
            raise ValueError("steps and epochs must be positive")
        positive = ("batch_size", "accumulation", "log_every", "eval_every", "save_every", "keep")
        check_positive(self, *positive)
        check_not_negative(
            self, "learning_rate", "clip", "workers", "measure_every", "patience", "weight_decay"
        )
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps, in [0, 1), got {self.warmup}")
        for name in ("eval_every", "save_every"):
            # So that a resumed training logs the same means as one that was not interrupted, and
            # one that stops early has logged its last step.
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"{name} must be a multiple of log_every, got {getattr(self, name)} and "
                    f"{self.log_every}"
                )


@dataclass(frozen=True)
class Mixer:
    """A mechanism with its options.

    Attributes:
        name: as in `lln list`.
        options: for `lln.build`.
        label: what it is called in the experiment, such as `lln_diag+block_size=32`.
    """

    name: str
    options: dict[str, Any]
    label: str


@dataclass(frozen=True)
class Experiment:
    """Trainings that differ in mixer and seed alone.

    Attributes:
        name: of the folder in `out` that holds the runs.
        mixer: names, each with options of its own after a plus: `lln_diag+block_size=32`.
        seed: of weights, order of the data, masks and dropout.
        attention: options by the name of the mechanism, for all runs with it.
    """

    kind: ClassVar[str]

    name: str
    mixer: tuple[str, ...] = ("lln_diag",)
    seed: tuple[int, ...] = (0,)
    out: str = "runs"
    model: Model = field(default_factory=Model)
    attention: dict[str, dict[str, Any]] = field(default_factory=dict)
    training: Training = field(default_factory=lambda: Training(steps=125_000))

    def __post_init__(self) -> None:
        if min(self.seed) < 0:
            raise ValueError(f"seed must not be negative, got {min(self.seed)}")

    @property
    def title(self) -> str:
        """What tells its runs from those of other experiments."""
        return self.name

    @property
    def folder(self) -> Path:
        """Where the runs are."""
        return Path(self.out) / self.title


@dataclass(frozen=True)
class Pretraining(Experiment):
    """Masked language modelling."""

    kind: ClassVar[str] = "pretrain"

    data: Corpus = field(default_factory=Corpus)


@dataclass(frozen=True)
class Finetuning(Experiment):
    """Classification of sentences.

    Attributes:
        pretrained: the `model` folder of a run, or the folder of an experiment, of which each run
            takes the one with its mixer and seed; None starts from scratch.
    """

    kind: ClassVar[str] = "finetune"

    pretrained: str | None = None
    data: Sentences = field(default_factory=Sentences)


@dataclass(frozen=True)
class Vision(Experiment):
    """Classification of images."""

    kind: ClassVar[str] = "vit"

    model: ImageModel = field(default_factory=ImageModel)
    data: Pictures = field(default_factory=Pictures)


@dataclass(frozen=True)
class Arena(Experiment):
    """A task of the Long Range Arena; every task has a folder of its own.

    Attributes:
        task: which.
    """

    kind: ClassVar[str] = "lra"

    task: ArenaTask = "listops"
    model: SequenceModel = field(default_factory=SequenceModel)
    data: Sequences = field(default_factory=Sequences)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, tasks in TASKS_WITH.items():
            if getattr(self.data, name) is not None and self.task not in tasks:
                raise ValueError(
                    f"{self.task} has no {name}: only {' and '.join(tasks)} have, leave it out"
                )

    @property
    def title(self) -> str:
        """Scores of different tasks have nothing to do with each other."""
        return f"{self.name}/{self.task}"


TASKS_WITH = {
    "length": ("listops", "text", "retrieval"),
    "shortest": ("listops",),
    "generator_seed": ("listops", "pathfinder", "pathx"),
}

AnyExperiment: TypeAlias = Pretraining | Finetuning | Vision | Arena


@dataclass(frozen=True)
class Run:
    """One training of an experiment."""

    experiment: AnyExperiment
    mixer: Mixer
    seed: int

    @property
    def folder(self) -> Path:
        """Where everything about the run is."""
        return self.experiment.folder / f"{self.mixer.label}-seed{self.seed}"

    def config(self) -> dict[str, Any]:
        """All that decides how the run ends, as `run.json` keeps it."""
        whole = asdict(self.experiment)
        # Where an experiment lies decides nothing, and neither do the runs beside this one.
        del whole["out"], whole["attention"]
        return {
            **whole,
            "mixer": self.mixer.label,
            "seed": self.seed,
            "options": self.mixer.options,
        }
