"""Steps before a kernel: their working memory, their place in the launch, and the transposition."""

import numpy as np
import pytest

from gpulab import registry
from gpulab.kernels.matmul import simt, wgmma
from gpulab.lab import evaluate
from gpulab.lab.runner import KernelRunner
from gpulab.registry import Case, KernelSpec, LaunchPlan, Param, RawBuild, Step, Variant
from gpulab.runtime.emulated import EmulatedDevice

SOURCE = """
extern "C" __global__ void product(const float* a, const float* b_transposed, float* c,
                                   int m, int n, int k) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= m || j >= n) return;
    float sum = 0.0f;
    for (int t = 0; t < k; ++t) sum = fmaf(a[i * k + t], b_transposed[j * k + t], sum);
    c[i * n + j] = sum;
}
"""
DIMS = {"m": 33, "n": 20, "k": 40}
FP32 = Variant("fp32", "fp32", "fp32")


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice((9, 0))


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "product.cu"
    path.write_text(SOURCE)

    def own(variant):
        return tuple(
            Param("b_transposed", "in", "fp32", ("n", "k")) if p.name == "b" else p
            for p in simt.params(variant)
        )

    def steps(variant, capability, dims):
        return wgmma.steps(Variant("tf32", "fp32", "fp32"), capability, dims)

    return Case(
        KernelSpec(
            op="matmul", name="turned", backend="raw", idea="", order=1, variants=(FP32,),
            params=simt.params, own_params=own, steps=steps,
            build=lambda v, c, d: RawBuild(str(path), "product"), plan=simt.plan,
        ),
        FP32,
    )  # fmt: skip


def test_a_row_with_a_step_is_judged_like_any_other(device, case):
    (record,) = evaluate.evaluate_all([case], device, DIMS)
    assert record["verdict"] == "PASS", record["reason"]


def test_the_kernel_alone_reads_what_the_step_left(device, case):
    runner = KernelRunner(case, device, DIMS)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((33, 40), (40, 20)))
    sent, out = runner.upload({"a": a, "b": b}), runner.outputs()
    before, alone = runner.bind_parts({**sent, **out})
    before()
    np.testing.assert_array_equal(device.download(runner.work["b_transposed"]), b.T)
    alone()
    np.testing.assert_array_equal(device.download(out["c"]), a @ b)
    runner.bind({**sent, **out})()
    assert len(runner.work) == 1  # allocated once


@pytest.mark.parametrize(("size", "kind"), [(1, "u1"), (2, "u2"), (4, "u4")])
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (32, 160), (132, 36), (260, 128)])
def test_transpose_moves_every_element(device, size, kind, rows, columns):
    names = {1: "e4m3", 2: "bf16", 4: "fp32"}
    params = (
        Param("x", "in", names[size], ("r", "c")),
        Param("y", "out", names[size], ("c", "r")),
        Param("r", "dim", "int32"),
        Param("c", "dim", "int32"),
    )
    codes = np.arange(rows * columns, dtype=np.uint32)
    codes = (codes * 2654435761 >> (7 if size < 4 else 0)).astype(kind).reshape(rows, columns)
    x = device.upload(codes.view(params[0].dtype), "x")
    y = device.empty((columns, rows), params[0].dtype, name="y")
    build = RawBuild("common/transpose.cu", f"transpose<{size}>")
    edge = 32 * (4 // size)
    tiles = -(-rows // edge) * -(-columns // edge)
    device.launch(
        device.build(build, params), LaunchPlan((tiles, 1, 1), (32, 8, 1)), [x, y, rows, columns]
    )
    np.testing.assert_array_equal(device.download(y).view(kind), codes.T)
    device.free(x, y)


def test_transpose_meets_no_bank_twice():
    counting = EmulatedDevice((9, 0), counters=True)
    for fmt, size in (("e4m3", 1), ("tf32", 4)):
        variant = next(v for v in wgmma.VARIANTS if v.format == fmt)
        dims = {"m": 1, "n": 128, "k": 128}
        (step,) = wgmma.steps(variant, (9, 0), dims)
        assert step.build.entry == f"transpose<{size}>"
        b = counting.upload(np.zeros((128, 128), step.params[0].dtype))
        t = counting.empty((128, 128), step.params[0].dtype)
        report = counting.launch(
            counting.build(step.build, step.params), step.plan, [b, t, 128, 128]
        )
        for way in ("ld", "st"):
            name = f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{way}.sum"
            assert report.counters[name] == 0


def test_every_step_of_the_registry_makes_what_its_kernel_takes():
    found = 0
    for case in registry.cases("matmul", studies=True):
        if case.spec.backend == "library":
            continue  # takes the arrays by name, and has no parameters of its own
        steps = case.spec.steps(case.variant, (9, 0), {"m": 64, "n": 64, "k": 64})
        made = {p.name: p for step in steps for p in step.params if p.role == "out"}
        assert isinstance(steps, tuple)
        assert all(isinstance(step, Step) for step in steps)
        if made:
            found += 1
            taken = {p.name: p for p in case.spec.own_params(case.variant)}
            for name, param in made.items():
                assert (taken[name].format, taken[name].dims) == (param.format, param.dims)
                assert taken[name].role == "in"
        elif case.spec.own_params is not None:
            assert case.spec.own_params(case.variant) == case.spec.params(case.variant)
    assert found
