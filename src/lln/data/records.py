"""Images with their labels in one memory-mapped file.

A file is a structured .npy array: numpy alone can read it, and nothing in it can be executed.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from lln.data.tokenizers import SPECIALS


def record_of(size: int, channels: int) -> np.dtype[Any]:
    """A record of an image: its place in the source, its label and its pixels."""
    return np.dtype([("place", "<u4"), ("label", "<u2"), ("image", "u1", (size, size, channels))])


def write_records(path: Path, dtype: np.dtype[Any], records: Iterable[NDArray[Any]]) -> None:
    """Writes records one after the other, however many there are."""

    def write_header(count: int) -> None:
        description = npy.dtype_to_descr(dtype)
        npy.write_array_header_2_0(
            file, {"descr": description, "fortran_order": False, "shape": (count,)}
        )

    count = 0
    with path.open("wb") as file:
        write_header(0)
        for record in records:
            file.write(np.asarray(record, dtype).tobytes())
            count += 1
        # The format keeps space in a header for a count of any size, so this one fits.
        file.seek(0)
        write_header(count)


class Images(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Images of one size and their labels, read from a file as they are needed.

    An item is `{"pixel_values": (C, H, W), "labels": ()}`, its pixels from −1 to 1, as those of
    Hugging Face ViT are.

    Args:
        path: File that `write_records` wrote.
        classes: Names of the labels.
    """

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        self.path, self.classes = path, tuple(classes)
        try:
            self.records = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is damaged: delete it, and it is made again") from error

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """All pixels as they are stored: (images, H, W, C)."""
        return self.records["image"]  # type: ignore[no-any-return]

    @property
    def labels(self) -> NDArray[np.int64]:
        """All labels: (images,)."""
        return self.records["label"].astype(np.int64)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        record = self.records[place]
        pixels = torch.from_numpy(np.array(record["image"])).permute(2, 0, 1)  # (C, H, W)
        return {
            "pixel_values": pixels.float() / 127.5 - 1,
            "labels": torch.tensor(int(record["label"])),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers map the file anew; pickling the array would copy all of it.
        return Images, (self.path, self.classes)


class PixelTokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Grey images as sequences, row after row, as the Long Range Arena reads them.

    An item is `{"input_ids": (H · W,), "labels": ()}`. The id of a pixel is its value plus the
    number of special tokens, whose ids stay free as in every tokenizer here.

    Args:
        images: Of one channel.
    """

    vocab_size = 256 + len(SPECIALS)

    def __init__(self, images: Images) -> None:
        channels = images.pixels.shape[-1]
        if channels != 1:
            raise ValueError(
                f"images of {channels} channels are no sequence of pixels: make them grey"
            )
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        record = self.images.records[place]
        ids = torch.from_numpy(record["image"].astype(np.int64).ravel())  # (H · W,)
        return {"input_ids": ids + len(SPECIALS), "labels": torch.tensor(int(record["label"]))}


class CropsAndFlips(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Images moved by up to `margin` pixels and mirrored by chance, for training.

    What happens to an image depends on the seed, the epoch and its index alone: a resumed run and
    any number of workers see the same.

    Args:
        images: To change.
        seed: Of the changes.
        margin: Pixels that are added on every side, by reflection, before the crop.
    """

    def __init__(self, images: Images, *, seed: int, margin: int) -> None:
        height = images.pixels.shape[1]
        if not 0 <= margin < height:
            raise ValueError(f"margin {margin} is not from 0 to {height - 1}")
        self.images, self.seed, self.margin = images, seed, margin
        # In shared memory, since workers that outlive an epoch have to learn of the next.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Changes crops and flips; call it before each epoch, also when resuming within one."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return self.in_epoch(place, int(self._epoch))

    def in_epoch(self, place: int, epoch: int) -> dict[str, torch.Tensor]:
        """An image as it is in an epoch, whichever was set."""
        item = self.images[place]
        draw = np.random.default_rng([self.seed, epoch, place])
        down, right = draw.integers(0, 2 * self.margin + 1, 2).tolist()
        pixels = item["pixel_values"]  # (C, H, W)
        _, height, width = pixels.shape
        wide = torch.nn.functional.pad(pixels, [self.margin] * 4, mode="reflect")
        pixels = wide[:, down : down + height, right : right + width]  # (C, H, W)
        if draw.random() < 0.5:
            pixels = pixels.flip(-1)
        return {**item, "pixel_values": pixels.contiguous()}
