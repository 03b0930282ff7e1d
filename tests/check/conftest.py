"""Shared by the checker's tests: one seed, one cache of references, one process.

Files of the repository are trusted and judged in the test's own process; what is tested about
processes asks for ``isolated``.
"""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from gpulab.check.client import Client
from gpulab.check.judge import check
from gpulab.check.local import LocalClient
from gpulab.check.session import Options
from gpulab.numerics.cache import Cache

SEED = 20240611


@pytest.fixture(scope="session")
def cache():
    return Cache()


@pytest.fixture
def judged(cache):
    """Check a file and return its result."""

    def run(path, *, isolated=False, **options):
        given = Options(**{"seed": SEED, **options})
        return check(path, given, cache=cache, workers=Client if isolated else LocalClient)

    return run


@pytest.fixture
def submitted(judged, tmp_path):
    """Check a text as a submission."""

    def run(text, name="kernel.cu", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return judged(path, **options)

    return run
