"""The 3xTF32 matmul, run from its PTX: the declared sums bit for bit, any value of float32, and the
same source with something left out, which the gates fail.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from gpulab import registry
from gpulab.kernels.matmul import mma_3xtf32
from gpulab.lab.runner import KernelRunner
from gpulab.numerics import split, tensorcore
from gpulab.numerics.cache import Cache
from gpulab.ops.matmul import MATMUL
from gpulab.registry import RawBuild
from gpulab.runtime import assembly, sources
from gpulab.runtime.emulated import EmulatedDevice

CASE = next(registry.cases("matmul", kernel="mma_3xtf32"))
TAILS, ALIGNED = (70, 37, 45), (24, 40, 64)
AMPERE, HOPPER, BLACKWELL = (8, 0), (9, 0), (12, 0)
SMALL = {"m": 16, "n": 16, "k": 72}
LARGEST = float(np.finfo(np.float32).max)
CACHE = Cache()


@lru_cache(maxsize=4)
def device(capability):
    return EmulatedDevice(capability)


def run(a, b, capability=AMPERE):
    (m, k), n = a.shape, b.shape[1]
    runner = KernelRunner(CASE, device(capability), {"m": m, "n": n, "k": k})
    result = runner({"a": a, "b": b}, poison=0xA5)
    assert result.inputs_unchanged
    return result.outputs["c"]


def normal(shape, seed=3):
    m, n, k = shape
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")


@pytest.mark.parametrize(
    ("capability", "shape"),
    [(AMPERE, TAILS), (AMPERE, ALIGNED), (HOPPER, TAILS), (BLACKWELL, TAILS)],
    ids=str,
)
def test_the_results_are_the_declared_sums_bit_for_bit(capability, shape):
    a, b = normal(shape)
    rules = tensorcore.model(CASE.variant.instruction(capability), capability)
    beyond = -a.shape[1] % rules.k
    want = split.sums(rules, np.pad(a, ((0, 0), (0, beyond))), np.pad(b, ((0, beyond), (0, 0))))
    assert np.array_equal(run(a, b, capability), want)


def fused(a, b):
    """float32 sums of a fused multiply-add a term; float64 holds a product exactly."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            total = (total + a[:, k : k + 1].astype("f8") * b[k].astype("f8")).astype(np.float32)
    return total


@pytest.mark.parametrize(
    "value",
    [np.inf, -np.inf, np.nan, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, LARGEST, -LARGEST, 2.0**127],
    ids=str,
)
def test_infinities_nan_and_the_largest_numbers_reach_their_results_and_no_other(value):
    bits = np.uint32(value).view(np.float32) if isinstance(value, int) else np.float32(value)
    a, b = normal((20, 9, 24))
    b *= np.float32(0.01)
    clean = run(a, b)
    a[3, 5], b[2, 7] = bits, bits
    b[5, :4] = [0.0, -1.0, 1.5, 2.0**-149]  # beside the value: none, its other sign, and more
    got, want = run(a, b), fused(a, b)
    touched = np.zeros(got.shape, bool)
    touched[3], touched[:, 7] = True, True
    touched[:, :4] = True  # b has changed there
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got[~np.isfinite(want)], want[~np.isfinite(want)], equal_nan=True)
    assert np.array_equal(got[~touched], clean[~touched])
    with np.errstate(all="ignore"):
        r1, s = a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b).astype("f8")
    there = touched & np.isfinite(want)
    assert (np.abs(got[there] - r1[there]) <= 2.0**-20 * s[there]).all()


def test_small_numbers_keep_their_low_part():
    rng = np.random.default_rng(4)
    a = (rng.uniform(0.5, 1.0, (20, 24)) * 2.0**-126).astype("f4")  # subnormal
    b = (rng.uniform(0.5, 1.0, (24, 9)) * 2.0**60).astype("f4")
    r1 = a.astype("f8") @ b.astype("f8")
    # Two tf32 parts without the factor 2^13 keep 2^-137 of 2^-127: an error of 2^-11 and more.
    assert np.abs(run(a, b) / r1 - 1).max() < 2.0**-20


def test_three_products_of_the_declared_instruction_stand_for_one():
    tile = mma_3xtf32.tile(AMPERE)
    build = mma_3xtf32.build(CASE.variant, AMPERE, SMALL)
    text = assembly.prepare(build, CASE.spec.params(CASE.variant), AMPERE).ptx
    spelled = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    fragments = (tile.warp_m // 16) * (tile.warp_n // 8) * (tile.slab_bytes // 32)
    assert text.count(spelled) == text.count("mma.sync") == split.PRODUCTS * fragments


def test_below_8_0_it_is_refused():
    assert CASE.refusal((7, 5), "emulated", SMALL) == "needs sm_80"
    assert CASE.refusal((8, 0), "emulated", SMALL) is None


def mutated(tmp_path, before, after):
    """The kernel's runner with one line of its source changed."""
    text = (sources.root() / "matmul" / "mma_3xtf32.cu").read_text()
    assert text.count(before) == 1
    path = tmp_path / "changed.cu"
    path.write_text(text.replace(before, after))

    def build(variant, capability, dims):
        return RawBuild(str(path), mma_3xtf32.build(variant, capability, dims).entry)

    case = replace(CASE, spec=replace(CASE.spec, build=build))
    return KernelRunner(case, device(AMPERE), SMALL)


LOOP = "n < 2 * T::kNTiles; ++n"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (LOOP, "n < 0; ++n", {"exact-probe", "rms", "interval"}),  # one tf32 product
        (LOOP, "n < T::kNTiles; ++n", {"exact-probe", "rms", "interval"}),  # no hi lo
        ("int n = 0; " + LOOP, "int n = T::kNTiles; " + LOOP, {"exact-probe", "rms", "interval"}),
        ("if (!all_finite) sum_again", "if (false) sum_again", {"nonfinite"}),
    ],
    ids=["one product", "no hi lo", "no lo hi", "Inf left as it comes"],
)
def test_the_kernel_with_something_left_out_fails(tmp_path, before, after, why):
    found = MATMUL.judge(
        CASE.variant,
        SMALL,
        mutated(tmp_path, before, after),
        capability=AMPERE,
        families=("normal",),
        effort="full" if why == {"nonfinite"} else "quick",
        cache=CACHE,
    )
    assert found.verdict == "FAIL"
    assert why <= {r.code for r in found.reasons}


def test_the_kernel_itself_passes_where_these_fail():
    found = MATMUL.judge(
        CASE.variant,
        SMALL,
        KernelRunner(CASE, device(AMPERE), SMALL),
        capability=AMPERE,
        families=("normal", "subnormal"),
        effort="full",
        cache=CACHE,
    )
    assert found.verdict == "PASS", found.reasons
