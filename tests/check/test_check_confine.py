"""The memory limit is a submission's own: what a driver has reserved before does not count."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import mmap, sys, tempfile
from pathlib import Path
import numpy as np
reserved = mmap.mmap(-1, {reserved} << 30, flags=mmap.MAP_PRIVATE, prot=0)
from gpulab.check.worker import Worker
worker = Worker(Path(tempfile.mkdtemp()))
told = worker.confine({{"device": "emulated", "memory_bytes": 2 << 30, "readable": []}}, {{}})
print("confined", told[0]["held"]["memory limit"])
np.empty(1 << 30, np.uint8)
print("one")
np.empty(3 << 30, np.uint8)
print("three")
"""


@pytest.mark.parametrize("reserved", [1, 40])
def test_the_limit_is_beyond_what_is_reserved(reserved, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(reserved=reserved)],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["confined True", "one"], done.stderr
    assert "ArrayMemoryError" in done.stderr or "MemoryError" in done.stderr
