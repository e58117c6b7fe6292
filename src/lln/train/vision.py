"""Classification of images, as ViT's (Dosovitskiy et al. 2021, arXiv 2010.11929)."""

from torch.utils.data import Subset
from transformers import PreTrainedModel

from lln.data import CropsAndFlips, Images, open_images
from lln.models import EncoderForImageClassification
from lln.train.classification import accuracy, choices, sample, stack
from lln.train.config import Run, Vision
from lln.train.encoders import encoder_config, of_classes
from lln.train.order import Examples
from lln.train.session import Material


def prepare(run: Run) -> Material:
    """Images of a set, and an encoder with a head for its classes."""
    experiment = run.experiment
    assert isinstance(experiment, Vision)
    data, tested = experiment.data, experiment.data.test_examples

    def images(split: str) -> Images:
        return open_images(data.dataset, size=data.size, root=data.root, split=split)

    train = images("train")
    _, height, _, channels = train.pixels.shape  # (images, H, W, C)

    def build() -> PreTrainedModel:
        return EncoderForImageClassification(
            encoder_config(
                run, image_size=height, num_channels=channels, **of_classes(train.classes)
            )
        )

    return Material(
        examples=CropsAndFlips(train, seed=run.seed, margin=data.margin) if data.margin else train,
        evaluation=_some(images("valid"), data.eval_examples),
        collate=stack,
        build=build,
        reduce=choices,
        score=accuracy,
        best="accuracy",
        test=None if tested is None else _some(images("test"), tested),
    )


def _some(images: Images, count: int) -> Examples:
    return Subset(images, sample(count, len(images)))
