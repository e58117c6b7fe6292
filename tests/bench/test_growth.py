import pytest

from lln.bench.grid import Grid, document
from lln.bench.growth import crossover, slope


def test_growth_is_the_exponent_of_a_power_law():
    assert slope([(n, 3 * n**1.7) for n in (2, 8, 64)]) == pytest.approx(1.7)
    assert slope([(8, 1.0)]) is None


def test_between_two_lengths_the_ratio_is_a_power_law():
    """A cost 300 n meets n² at 300, whatever the lengths around it."""
    for lengths in ((256, 512), (32, 4096), (100, 1000, 5000)):
        assert crossover({n: 300 * n / n**2 for n in lengths}) == "300"


def test_lengths_that_were_not_measured_are_not_guessed():
    assert crossover({512: 0.5, 1024: 0.2}) == "< 512"
    assert crossover({512: 4.0, 1024: 2.0}) == "> 1024"
    assert crossover({512: 0.5}) is None
    assert crossover({}) is None


def test_the_last_crossing_counts():
    """What is faster, slower and faster again is faster from the second time on."""
    assert crossover({4: 0.5, 16: 2.0, 64: 0.5}) == "32"
    assert crossover({4: 0.5, 16: 0.9, 64: 1.0}) == "> 64"


def test_a_grid_is_a_table_anywhere():
    grid = Grid("[a] title", ["name", "two\nlines"], [["x[0]", "1"], ["y", "–"]])
    assert grid.markdown() == (
        "[a] title\n\n| name | two lines |\n| --- | ---: |\n| x[0] | 1 |\n| y | – |\n"
    )
    assert list(grid.rich().columns[0].cells) == ["x[0]", "y"]
    assert document("T", "Made here.", [grid]).startswith("# T\n\nMade here.\n\n[a] title\n")
