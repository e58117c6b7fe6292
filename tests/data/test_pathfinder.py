"""Pathfinder: drawn, with the truth of what is connected, and read from LRA's release."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from lln.data import Images, PixelTokens, generate_pathfinder, open_images
from lln.data.pathfinder import SETTINGS, draw_record

SIZES = {"pathfinder32": 24, "pathfinder32_easy": 8, "pathfinder128": 2}


@pytest.fixture(scope="module", params=SIZES)
def drawn(request, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    images = generate_pathfinder(SIZES[request.param], seed=0, name=request.param, cache=cache)
    return SETTINGS[request.param], images


def test_sizes_and_classes(drawn):
    settings, images = drawn
    assert images.pixels.shape[1:] == (settings.size, settings.size, 1)
    assert images.classes == ("apart", "connected")
    assert np.bincount(images.labels).tolist() == [len(images) // 2] * 2
    assert (images.pixels.max((1, 2, 3)) == 255).all()
    assert (images.pixels.min((1, 2, 3)) == 0).all()


def test_positives_are_connected_and_negatives_are_not(drawn):
    settings, images = drawn
    for record in images.records:
        paths = record["paths"].astype(float)  # (2, dashes, 2, 2)
        start, end = record["marked"]
        assert (start == end) == record["label"]
        # A path is dashes that follow each other within the gap, rounded up to whole pixels.
        gaps = np.linalg.norm(paths[:, 1:, 0] - paths[:, :-1, 1], axis=-1)
        assert gaps.max() <= 2 * max(settings.gaps) + 2 * np.sqrt(2)
        assert not meet(paths[0].reshape(-1, 2), paths[1].reshape(-1, 2))
        for tip in (paths[start, 0, 0], paths[end, -1, 1]):
            row, column = tip.astype(int)
            assert record["image"][row, column, 0] > 150  # a marker


def meet(one, other):
    """Whether two lines share a point, by solving for it piece by piece."""
    for a, b in pairwise(one):
        for c, d in pairwise(other):
            matrix = np.stack([b - a, c - d], 1)
            if abs(np.linalg.det(matrix)) > 1e-9:
                along = np.linalg.solve(matrix, c - a)
                if ((along >= 0) & (along <= 1)).all():
                    return True
    return False


def test_the_check_of_crossings_can_fail():
    assert meet(np.array([[0.0, 0], [2, 2]]), np.array([[0.0, 2], [2, 0]]))
    assert not meet(np.array([[0.0, 0], [2, 2]]), np.array([[0.0, 2], [0.5, 1]]))


def test_dashes_are_drawn_where_the_truth_says(drawn):
    _, images = drawn
    for record in images.records:
        middles = record["paths"].astype(float).mean(2).reshape(-1, 2)
        for row, column in middles:
            window = record["image"][
                int(row) : int(np.ceil(row)) + 1, int(column) : int(np.ceil(column)) + 1
            ]
            assert window.max() > 25


def test_an_image_depends_on_seed_split_and_index_alone(tmp_path):
    few = generate_pathfinder(2, seed=0, name="pathfinder32_easy", cache=tmp_path)
    more = generate_pathfinder(4, seed=0, name="pathfinder32_easy", cache=tmp_path)
    np.testing.assert_array_equal(more.records[:2], few.records)
    valid = generate_pathfinder(2, seed=0, name="pathfinder32_easy", split="valid", cache=tmp_path)
    other = generate_pathfinder(2, seed=1, name="pathfinder32_easy", cache=tmp_path)
    for images in (valid, other):
        assert not (images.pixels[:, None] == more.pixels).all((2, 3, 4)).any()
    again = draw_record(SETTINGS["pathfinder32_easy"], 0, 0, 3)
    np.testing.assert_array_equal(again, more.records[3])


def test_pixels_as_a_sequence(drawn):
    _, images = drawn
    tokens = PixelTokens(images)
    assert len(tokens) == len(images)
    item = tokens[1]
    assert item["labels"] == 1
    expected = torch.from_numpy(images.pixels[1].astype(np.int64)).flatten() + 5
    torch.testing.assert_close(item["input_ids"], expected)
    assert item["input_ids"].max() < PixelTokens.vocab_size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "pathfinder64"}, "'pathfinder64' is not one of pathfinder32, "),
        ({"split": "dev"}, "'dev' is not one of the splits"),
        ({"size": 0}, "size 0 is not at least 1"),
    ],
)
def test_wrong_settings(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        generate_pathfinder(**{"size": 1, "seed": 0, "cache": tmp_path, **options})
    assert not list(tmp_path.iterdir())


@pytest.fixture
def release(tmp_path):
    """Twenty images of one brightness each, in two lists; the second list is read first by name."""
    folder = tmp_path / "lra_release/lra_release/pathfinder32/curv_contour_length_14"
    for part in ("10", "9"):
        (folder / "imgs" / part).mkdir(parents=True)
        rows = []
        for number in range(10):
            brightness = number + (10 if part == "10" else 0)
            Image.new("L", (32, 32), brightness).save(folder / f"imgs/{part}/sample_{number}.png")
            rows.append(f"imgs/{part} sample_{number}.png {number} {number % 2} 1.0 14 4 2 0.5 1 1")
        (folder / "metadata").mkdir(exist_ok=True)
        (folder / f"metadata/{part}.npy").write_text("\n".join(rows) + "\n")
    return folder


def values(images: Images):
    return images.pixels[:, 0, 0, 0].tolist()


def test_the_release_of_long_range_arena(release, tmp_path):
    options = {"root": tmp_path, "cache": tmp_path / "cache"}
    train = open_images("pathfinder32", **options)
    assert values(train) == list(range(16))
    assert train.labels.tolist() == [0, 1] * 8
    assert values(open_images("pathfinder32", split="valid", **options)) == [16, 17]
    assert values(open_images("pathfinder32", split="test", **options)) == [18, 19]


def test_metadata_as_the_published_code_writes_it(release, tmp_path):
    for path in (release / "metadata").iterdir():
        np.save(path, np.array([line.split() for line in path.read_text().splitlines()]))
    train = open_images("pathfinder32", root=tmp_path, cache=tmp_path / "cache")
    assert values(train) == list(range(16))


def test_empty_files_are_counted(release, tmp_path):
    (release / "imgs/9/sample_3.png").write_bytes(b"")
    options = {"root": tmp_path, "cache": tmp_path / "cache"}
    for _ in range(2):  # also from the cache
        with pytest.warns(UserWarning, match=r"1 of 16 images .* is imgs/9/sample_3.png"):
            train = open_images("pathfinder32", **options)
        assert values(train) == [0, 1, 2, *range(4, 16)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("imgs/9 sample_0.png 0 2", "the label '2' is neither 0 nor 1"),
        ("../../.. secret.png 0 1", "'../../../secret.png' leads out of the folder"),
        ("/etc passwd 0 1", "leads out of the folder"),
        ("imgs/9", "is no list of images"),
    ],
)
def test_wrong_metadata(release, tmp_path, row, message):
    (release / "metadata/9.npy").write_text(row + "\n")
    with pytest.raises(ValueError, match=message) as caught:
        open_images("pathfinder32", root=tmp_path, cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_pickles_are_refused(release, tmp_path):
    np.save(release / "metadata/9.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="is no list of images"):
        open_images("pathfinder32", root=tmp_path, cache=tmp_path / "cache")


def test_an_image_of_another_size(release, tmp_path):
    Image.new("L", (64, 64)).save(release / "imgs/9/sample_3.png")
    with pytest.raises(ValueError, match="has 64 × 64 pixels instead of 32"):
        open_images("pathfinder32", root=tmp_path, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_missing_files_name_the_generator(tmp_path):
    with pytest.raises(ValueError, match=r"draw it with lln\.data\.generate_pathfinder"):
        open_images("pathfinder128", root=tmp_path)
