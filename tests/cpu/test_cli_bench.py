"""What ``gpulab bench`` takes; it measures on a card only."""

import pytest

from gpulab.cli import bench
from gpulab.cli.options import parse_sizes
from gpulab.errors import UsageError


def test_sizes_are_squares_or_products():
    assert parse_sizes("64,8x16x32", "mnk", "64") == [
        {"m": 64, "n": 64, "k": 64},
        {"m": 8, "n": 16, "k": 32},
    ]


@pytest.mark.parametrize("text", ["", "64,", "8x16", "8x16x32x64", "8xax3", "0", "-4x4x4"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="--sizes"):
        parse_sizes(text, "mnk", "64")


def test_families_are_names_that_exist():
    assert bench._families(None) is None
    assert bench._families("normal,uniform") == ("normal", "uniform")
    with pytest.raises(UsageError):
        bench._families("normal,norml")


def test_titles_name_the_shape():
    assert bench._title({"m": 8, "n": 8, "k": 8}, 1) == "matmul 8, seed 1"
    assert bench._title({"m": 8, "n": 16, "k": 8}, 0) == "matmul 8 x 16 x 8, seed 0"
