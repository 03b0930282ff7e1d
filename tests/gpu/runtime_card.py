"""What the tests of the card share; skips them, with the reason, where there is no card."""

import pytest

from gpulab.errors import DeviceMissingError
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime.cuda_context import connect

try:
    CONNECTION = connect()
except DeviceMissingError as missing:
    pytest.skip(f"no usable card: {missing.message}", allow_module_level=True)

PAIR = (Param("x", "in", "fp32", ("n",)), Param("y", "out", "fp32", ("n",)))
SIZED = (*PAIR, Param("n", "dim", "int32"))
ONE = LaunchPlan((1, 1, 1), (32, 1, 1))


def source(folder, text, entry="k"):
    """A build request for CUDA C++ written into a file of ``folder``."""
    path = folder / f"{entry}.cu"
    path.write_text(text)
    return RawBuild(str(path), entry)


def run(card, function, plan, x, *numbers):
    """Launch over x and an output of its shape; the output."""
    sent, got = card.upload(x, "x"), card.empty(x.shape, x.dtype, name="y")
    card.launch(function, plan, [sent, got, *numbers])
    card.synchronize()
    return card.download(got)
