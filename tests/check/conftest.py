"""Shared by the checker's tests: one seed, one cache of references."""

import os

import pytest

from gpulab.check.judge import check
from gpulab.check.session import Options
from gpulab.numerics.cache import Cache

SEED = 20240611


@pytest.fixture(scope="session")
def cache():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return Cache()


@pytest.fixture
def judged(cache):
    """Check a file and return its result."""

    def run(path, **options):
        given = {"seed": SEED, **options}
        return check(path, Options(**given), cache=cache)

    return run


@pytest.fixture
def submitted(judged, tmp_path):
    """Check a text as a submission."""

    def run(text, name="kernel.cu", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return judged(path, **options)

    return run
