"""The memory limit of a worker bounds what it takes, not what a driver has mapped."""

import subprocess
import sys

import pytest

BODY = """
import mmap
from gpulab.check import confine
mapped = mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
confine.limit(256 << 20)
try:
    taken = bytearray({size})
except MemoryError:
    print("refused")
else:
    print("taken")
"""


@pytest.mark.parametrize(("size", "answer"), [(100 << 20, "taken"), (300 << 20, "refused")])
def test_memory_beyond_the_limit_is_refused_whatever_was_mapped_before(size, answer):
    done = subprocess.run(
        [sys.executable, "-c", BODY.format(size=size)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == answer
