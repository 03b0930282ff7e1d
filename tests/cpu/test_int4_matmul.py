"""Products with int4 weights: layout, bound, gates; right kernels pass and each mistake fails."""

import int4_kernels as kernels
import numpy as np
import pytest

from gpulab.errors import UsageError
from gpulab.numerics import tensorcore
from gpulab.numerics.cache import Cache
from gpulab.numerics.inputs import families_for
from gpulab.ops import int4_weights as int4
from gpulab.ops.base import RunResult
from gpulab.ops.int4_matmul import INT4_MATMUL
from gpulab.registry import Variant

ROW = Variant("int4", "fp32", "fp32")
DIMS = {"m": 9, "n": 21, "k": 77, "group": 16}
MMA = "mma.sync.m16n8k16.f32.f16.f16.f32"
CACHE = Cache()


def judge(kernel, dims=DIMS, row=ROW, **options):
    options = {"capability": (8, 9), "effort": "full", "cache": CACHE} | options
    return INT4_MATMUL.judge(row, dims, kernel(dims), **options)


def test_bytes_hold_the_even_row_in_the_low_half():
    integers = np.array([[1.0, -8.0], [-1.0, 7.0], [-3.0, 0.0]])
    stored = int4.store(integers, np.array([[0.5, 2.0]], np.float16))
    assert stored["w"].tolist() == [[0xF1, 0x78], [0x7D, 0x70]]  # the 7 is no row's
    assert stored["w"].flags.c_contiguous
    assert np.array_equal(int4.integers(stored["w"], 3), integers)
    assert np.array_equal(int4.weights(stored, 3, 8), integers * [0.5, 2.0])


def test_quantisation_is_within_half_a_step_and_meets_both_ends():
    values = np.random.default_rng(0).standard_normal((40, 33)).astype(np.float32)
    values[16:32, 0] = 0.0
    stored = int4.quantise(values, 16)
    assert stored["scales"].shape == (3, 33)
    steps = np.repeat(stored["scales"].astype(np.float64), 16, axis=0)[:40]
    inner = np.abs(values) <= 7 * steps
    assert (np.abs(int4.weights(stored, 40, 16) - values) <= 0.5001 * steps)[inner].all()
    assert {-8.0, 7.0} <= set(int4.integers(stored["w"], 40).ravel())
    assert (stored["scales"][1, 0], int4.integers(stored["w"], 40)[16:32, 0].any()) == (1.0, False)


def test_every_weight_is_a_float32_number():
    codes, scales = np.arange(-8.0, 8.0)[:, None], np.arange(1, 0x7C00, dtype=np.uint16)
    values = codes * scales.view(np.float16).astype(np.float64)
    assert np.array_equal(values.astype(np.float32).astype(np.float64), values)


@pytest.mark.parametrize("kernel", [kernels.Kernel, kernels.Backwards, kernels.GroupSums])
def test_right_kernels_pass_on_every_family(kernel):
    found = judge(kernel, families=families_for("fp16"))
    assert found.verdict == "PASS", found.reasons
    assert {p.probe for p in found.probes} == {
        "exact_signed", "exact_positive", "codes", "non_finite",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "dims",
    [{"m": 1, "n": 1, "k": 1, "group": 8}, {"m": 4, "n": 3, "k": 1500, "group": 128},
     {"m": 30, "n": 2, "k": 8, "group": 8}],
)  # fmt: skip
def test_right_kernels_pass_at_odd_sizes(dims, seed):
    for kernel in (kernels.Kernel, kernels.GroupSums):
        found = judge(kernel, dims, effort="quick", seed=seed)
        assert found.verdict == "PASS", found.reasons


WRONG = {
    kernels.Swapped: {"interval", "rms", "exact-probe", "contract"},
    kernels.Unsigned: {"interval", "rms", "exact-probe", "contract"},
    kernels.ZeroPoint: {"interval", "rms", "exact-probe", "contract"},
    kernels.NextGroup: {"interval", "rms", "exact-probe", "contract"},
    kernels.NoScale: {"interval", "rms", "exact-probe", "contract"},
    kernels.NoTail: {"interval", "rms", "exact-probe", "contract"},
    kernels.HalfWeights: {"interval", "rms", "exact-probe"},
    kernels.HalfGroupSums: {"interval", "rms", "exact-probe"},
    kernels.HalfSum: {"interval", "rms", "exact-probe"},
    kernels.HidesNaN: {"nonfinite", "exact-probe"},
    kernels.SkipsLastColumn: {"unwritten"},
}


@pytest.mark.parametrize("kernel", WRONG, ids=lambda k: k.__name__)
def test_every_mistake_fails_by_what_can_see_it(kernel):
    found = judge(kernel)
    assert found.verdict == "FAIL"
    assert WRONG[kernel] <= {r.code for r in found.reasons}
    precise = kernel in (kernels.HalfWeights, kernels.HalfGroupSums)
    assert found.contract_passed or not precise  # the published ceiling does not see these


def test_every_mutant_is_caught():
    power = {c.mutant: c.status for c in judge(kernels.Kernel).power}
    assert {m for m, status in power.items() if status == "passes"} == set()
    own = {"nibbles_swapped", "unsigned_codes", "offset_codes", "neighbour_scale", "no_scale",
           "half_weights", "half_group_sums"}  # fmt: skip
    assert {power[name] for name in own} == {"caught"}
    one_group = judge(kernels.Kernel, {**DIMS, "group": 80}).power
    assert {c.status for c in one_group if c.mutant == "neighbour_scale"} == {"not applicable"}


class TensorCore(kernels.Kernel):
    """The codes themselves through the instruction, each group's accumulator scaled in float32."""

    def product(self, a, w, scales):
        k, group = a.shape[1], self.dims["group"]
        model = tensorcore.model(MMA, (8, 9))
        total = np.zeros((len(a), w.shape[1]), np.float32)
        for first in range(0, k, group):
            rows = range(first, min(k, first + group))
            pad = -len(rows) % model.k
            left = np.pad(a[:, rows].astype(np.float16), ((0, 0), (0, pad)))
            right = np.stack([self.code(w, t) for t in rows]).astype(np.float16)
            right = np.pad(right, ((0, pad), (0, 0)))
            zero = np.zeros(total.shape, np.uint32)
            part = tensorcore.evaluate(
                model, np.ascontiguousarray(left), np.ascontiguousarray(right), zero
            )
            total = total + part.view(np.float32) * self.scale(scales, first)
        return total


def test_a_tensor_core_is_judged_by_its_instruction():
    row = Variant("int4", "fp32", "fp32", instructions=(((7, 5), MMA),))
    dims = {"m": 16, "n": 24, "k": 512, "group": 128}
    found = judge(TensorCore, dims, row)
    assert found.verdict == "PASS", found.reasons
    assert judge(kernels.HalfWeights, dims, row).verdict == "FAIL"


@pytest.mark.parametrize(
    ("dims", "text"),
    [({**DIMS, "group": 12}, "group = 12"), ({**DIMS, "group": 0}, "group = 0"),
     ({**DIMS, "group": True}, "group = True"), ({"m": 1, "n": 1, "k": 1}, "got m, n, k"),
     ({**DIMS, "k": 0}, "k = 0")],
)  # fmt: skip
def test_impossible_dims_are_refused(dims, text):
    with pytest.raises(UsageError, match=text):
        INT4_MATMUL.check_dims(dims)


def test_what_a_judge_cannot_do_is_refused():
    for options in ({"effort": "some"}, {"rests_on": "contract"}, {"families": ()}):
        with pytest.raises(UsageError):
            judge(kernels.Kernel, **options)


def test_costs_are_counted_by_hand():
    dims = {"m": 3, "n": 5, "k": 17, "group": 8}
    assert INT4_MATMUL.flops(dims) == 2 * 3 * 5 * 17
    assert INT4_MATMUL.bytes_moved(ROW, dims) == 2 * 3 * 17 + 9 * 5 + 2 * 3 * 5 + 4 * 3 * 5
    stored = INT4_MATMUL.digest_inputs(ROW, dims, 1)
    assert {n: a.shape for n, a in stored.items()} == {"a": (3, 17), "w": (9, 5), "scales": (3, 5)}


def test_a_missing_result_fails():
    def lost(inputs, *, poison):
        return RunResult({}, True)

    found = INT4_MATMUL.judge(ROW, DIMS, lost, capability=(8, 9), effort="quick", cache=CACHE)
    assert "shape" in {r.code for r in found.reasons}
