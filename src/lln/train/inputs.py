"""What trainings read: the `[data]` tables of experiments, one class for each kind."""

from dataclasses import dataclass
from typing import Literal

ArenaTask = Literal["listops", "text", "retrieval", "image", "pathfinder", "pathx"]


@dataclass(frozen=True)
class Source:
    """What all data have.

    Attributes:
        root: folder of the data sets; None is the environment variable LLN_DATA.
        eval_examples: evaluate on so many examples; 0 is all of them.
    """

    root: str | None = None
    eval_examples: int = 0

    def __post_init__(self) -> None:
        check_not_negative(self, "eval_examples")


@dataclass(frozen=True)
class Texts(Source):
    """Texts that a tokenizer cuts into pieces; evaluation takes the first ones.

    Attributes:
        length: tokens of a sequence, special ones included.
        tokenizer: `bpe` (byte-level, trained on the data), `bytes`, or the folder of a saved one.
        vocab_size: of `bpe`.
    """

    length: int = 512
    tokenizer: str = "bpe"
    vocab_size: int = 50265

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "length", "vocab_size")


@dataclass(frozen=True)
class Corpus(Texts):
    """Text for masked language modelling.

    Attributes:
        dataset: a name that `lln.data.open_dataset` knows, or a file.
        mask_probability: share of the tokens to predict.
    """

    dataset: str = "bundled"
    mask_probability: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_probability < 1:
            raise ValueError(f"mask_probability must be in (0, 1), got {self.mask_probability}")


@dataclass(frozen=True)
class Sentences(Texts):
    """Labelled sentences, or pairs of them.

    Attributes:
        task: of GLUE.
        train_examples: train on so many, the first ones; 0 is all of them.
    """

    task: Literal["sst2", "qnli", "mnli", "qqp"] = "sst2"
    train_examples: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "train_examples")


@dataclass(frozen=True)
class Pictures(Source):
    """Labelled images.

    Fewer examples than all are a sample, the same in every run.

    Attributes:
        dataset: a name that `lln.data.open_images` knows, or a folder or zip with a folder for each
            class.
        size: of the squares that images become; None for sets that have a size of their own.
        margin: pixels by which images are moved in training, at most, before half of them are
            mirrored; 0 does neither.
        test_examples: test the best model on so many; 0 is all of them, and None tests nothing, for
            sets of which nobody has the labels.
    """

    dataset: str = "dogs_vs_cats"
    size: int | None = None
    margin: int = 0
    test_examples: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "margin")
        if self.test_examples is not None:
            check_not_negative(self, "test_examples")


@dataclass(frozen=True)
class Sequences(Source):
    """Sequences of a task of the Long Range Arena.

    Fewer examples than all are a sample, the same in every run; 0 is all of them, of what is
    generated as many as LRA has.

    Attributes:
        length: tokens at most, for texts and ListOps; None is LRA's. The rest of a longer text is
            left out.
        shortest: generated expressions of ListOps have more tokens than this, and fewer than
            `length`; None is LRA's.
        generator_seed: of ListOps and Pathfinder: generate examples from this seed; None reads
            LRA's files.
        train_examples: train on so many.
        test_examples: test the best model on so many.
    """

    length: int | None = None
    shortest: int | None = None
    generator_seed: int | None = None
    train_examples: int = 0
    test_examples: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "train_examples", "test_examples")
        for name in ("length", "shortest"):
            if getattr(self, name) is not None:
                check_positive(self, name)
        if self.generator_seed is not None:
            check_not_negative(self, "generator_seed")


def check_positive(config: object, *names: str) -> None:
    """Raises where a value is not at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be positive, got {getattr(config, name)}")


def check_not_negative(config: object, *names: str) -> None:
    """Raises where a value is less than 0."""
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be negative, got {getattr(config, name)}")
