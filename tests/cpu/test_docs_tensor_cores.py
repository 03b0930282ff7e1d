"""docs/tensor-cores.md says what the library and the recordings say."""

import importlib.util
import sys

import numpy as np
import pytest
from golden_data import FULL, ROOT
from tensorcore_cases import H100, encoded

from gpulab.numerics.tensorcore import mma

spec = importlib.util.spec_from_file_location(
    "update_tensor_cores", ROOT / "scripts" / "update_tensor_cores.py"
)
script = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


@pytest.mark.parametrize("part", script.PARTS)
def test_the_computed_parts_are_current(part):
    if part == "card misses" and not (FULL / "dot_products_by_gpu.npz").exists():
        pytest.skip(f"dot_products_by_gpu.npz is not in {FULL}")
    page = script.PAGE.read_text(encoding="utf-8")
    assert f"<!-- {part} -->\n{script.PARTS[part]()}\n<!-- end -->" in page


def test_a_part_that_is_missing_is_an_error():
    with pytest.raises(SystemExit, match="no part 'weather'"):
        script.replaced("a page", "weather", "sunny")


def test_the_cases_that_would_tell_the_open_readings_apart():
    """What the page says this model gives for them."""
    a, b = encoded(np.full((1, 16), 2.0**-76), "bf16"), encoded(np.full((16, 1), 2.0**-77), "bf16")
    zero = np.zeros((1, 1), np.uint32)
    assert mma(a, b, zero, "mma.sync.m16n8k16.f32.bf16.bf16.f32", H100) == 1
    a, b = np.zeros((1, 16)), np.zeros((16, 1))
    a[0, :2], b[:2, 0] = (2.0**-12, 2.0**-24), (2.0**-13, 2.0**-24)
    a, b = encoded(a, "f16"), encoded(b, "f16")
    for c, want in ((0, 0), (2, 2)):
        got = mma(a, b, np.uint16([[c]]), "mma.sync.m16n8k16.f16.f16.f16.f16", H100)
        assert got == want
