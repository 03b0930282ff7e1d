"""wgmma on the emulated device: the lab's Hopper kernels give the declared sums, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab import registry
from gpulab.emulator.flow import destinations, sources
from gpulab.emulator.machine import Machine
from gpulab.errors import BuildError, FaultError
from gpulab.formats import decode, encode
from gpulab.kernels.matmul import wgmma
from gpulab.lab.runner import KernelRunner
from gpulab.numerics import simulate, split, tensorcore
from gpulab.numerics.contract import Contract
from gpulab.registry import Case, Variant
from gpulab.runtime import nvrtc
from gpulab.runtime import sources as files
from gpulab.runtime.cache import Store
from gpulab.runtime.emulated import EmulatedDevice

HOPPER = (9, 0)
TAILS = {"m": 70, "n": 136, "k": 208}
"""A second tile in m and n with little in it, k that ends within a slab."""


@cache
def device() -> EmulatedDevice:
    return EmulatedDevice(HOPPER)


def product(case: Case, dims: dict[str, int], a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    result = KernelRunner(case, device(), dims)({"a": a, "b": b})
    assert result.inputs_unchanged
    return result.outputs["c"]


def operands(variant: Variant, dims: dict[str, int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Exponents spread, signs mixed: the order and the cuts of a sum show in its bits."""
    rng = np.random.default_rng(5)
    shapes = (dims["m"], dims["k"]), (dims["k"], dims["n"])
    a, b = (rng.choice([-1.0, 1.0], s) * np.exp2(rng.uniform(-6, 2, s)) for s in shapes)
    return encode(variant.format, a), encode(variant.format, b)


def rows() -> Iterator[Any]:
    """One variant of each kind of operand and sum in `make test`; all in `make test-whole`."""
    sampled = {("bf16", "bf16", ""), ("tf32", "fp32", ""), ("e4m3", "fp32", "promoted")}
    for case in registry.cases("matmul", kernel="wgmma"):
        v = case.variant
        key = v.format, v.output, v.contract
        marks = [] if key in sampled else [pytest.mark.whole]
        yield pytest.param(case, id="-".join(key).rstrip("-"), marks=marks)


@pytest.mark.parametrize("case", list(rows()))
def test_the_bits_are_the_declared_sums(case: Case) -> None:
    """By the simulation of the contract, which knows nothing of tiles, maps or fragments."""
    a, b = operands(case.variant, TAILS)
    contract = Contract.of(case.variant, HOPPER)
    whole = SimpleNamespace(a_codes=a, b_codes=b, k=TAILS["k"])
    foretold = contract.store(simulate.tensor_core(contract, contract.model, whole))
    got = product(case, TAILS, a, b)
    bits = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(bits), foretold.view(bits))


def with_blocks(case: Case, blocks: int) -> Case:
    """The row with no more blocks than that, which take tile after tile."""
    plan = case.spec.plan
    assert plan is not None
    fewer = lambda *a: replace(plan(*a), grid=(blocks, 1, 1))  # noqa: E731
    return Case(replace(case.spec, plan=fewer), case.variant)


@pytest.mark.parametrize(
    ("kernel", "blocks"),
    [("wgmma-tma", None), ("wgmma-persistent", 3), ("wgmma-multicast", 2)],
)
def test_steps_of_the_ladder_are_exact(kernel: str, blocks: int | None) -> None:
    """All warps in step; blocks that stay; clusters that share what they load."""
    (case,) = registry.cases("matmul", kernel=kernel)
    dims = {"m": 260, "n": 528, "k": 208}
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, s).astype(float) for s in ((260, 208), (208, 528)))
    run = with_blocks(case, blocks) if blocks else case
    got = product(run, dims, encode("bf16", a), encode("bf16", b))
    np.testing.assert_array_equal(got, a @ b)


def test_three_products_of_tf32_with_a_from_registers() -> None:
    (case,) = registry.cases("matmul", kernel="wgmma_3xtf32")
    rng = np.random.default_rng(40)
    a, b = (
        (rng.choice([-1.0, 1.0], s) * np.exp2(rng.uniform(-6, 2, s))).astype("f4")
        for s in ((70, 40), (40, 60))
    )
    rules = tensorcore.model(str(case.variant.instruction(HOPPER)), HOPPER)
    got = product(case, {"m": 70, "n": 60, "k": 40}, a, b)
    np.testing.assert_array_equal(got, split.sums(rules, a, b, case.variant.promotion))


def test_the_race_detector_raises_no_alarm() -> None:
    case = next(registry.cases("matmul", kernel="wgmma", format="bf16"))
    a, b = operands(case.variant, TAILS)
    watched = EmulatedDevice(HOPPER, sanitize=True)
    got = KernelRunner(case, watched, TAILS)({"a": a, "b": b}).outputs["c"]
    np.testing.assert_array_equal(got, product(case, TAILS, a, b))


WAITS = {
    "full": ("wgmma_tile.cuh", "ptx::mbarrier_wait(ring.full(ring.slot), ring.phase);"),
    "empty": ("wgmma_tile.cuh", "ptx::mbarrier_wait(ring.empty(ring.slot), ring.phase ^ 1);"),
    "product": ("wgmma_tile.cuh", "ptx::wgmma_wait<1>();"),
    "store": (
        "wgmma_store.cuh",
        "if (leader) ptx::tma_store_wait_read<kBuffers - 1>();",
    ),
}
"""Stages that have come, that are free again, that products have read; a buffer that is free."""


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_is_taken_out_is_missed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, wait = WAITS[name]
    copy = shutil.copytree(files.root(), tmp_path / "raw_kernels")
    text = (copy / "matmul" / file).read_text()
    assert wait in text
    (copy / "matmul" / file).write_text(text.replace(wait, ""))
    monkeypatch.setattr(files, "root", lambda: copy)
    case = with_blocks(next(registry.cases("matmul", kernel="wgmma", format="bf16")), 1)
    dims = {"m": 64, "n": 128, "k": 640}
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, s).astype(float) for s in ((64, 640), (640, 128)))
    alone = EmulatedDevice(HOPPER, store=Store(tmp_path / "cache"))
    stored = {"a": encode("bf16", a), "b": encode("bf16", b)}
    if name == "store":  # nothing is illegal in that: other numbers are stored
        got = KernelRunner(case, alone, dims)(stored).outputs["c"]
        assert np.any(got != a @ b)
        return
    with pytest.raises(FaultError) as raised:
        KernelRunner(case, alone, dims)(stored)
    assert raised.value.details["fault"] in ("async_in_flight", "mbarrier")


# --- the instruction alone -----------------------------------------------------------------------

SOURCE = """#include "ptx/shared.cuh"
#include "ptx/wgmma.cuh"
// 64 x 64 sums of k = 16: A (64 x 16) lies in rows of 128 bytes without a TMA copy, B (64 x 16) too.
// kind: 1 without the swizzle, 2 outside of shared memory, 4 not written, 8 by two warps of four,
// 16 two warps come long after the others.
extern "C" __global__ void kernel(const unsigned short* a, const unsigned short* b, float* c, int kind) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned at = ptx::shared_address(memory), t = threadIdx.x;
    for (int i = t; i < 64 * 16 && !(kind & 4); i += blockDim.x) {
        const unsigned row = i / 16, bytes = row * 128 + ((i % 16 / 8 ^ row % 8) << 4) + i % 8 * 2;
        *reinterpret_cast<unsigned short*>(memory + bytes) = a[i];
        *reinterpret_cast<unsigned short*>(memory + 8192 + bytes) = b[i];
    }
    __syncthreads();
    if (kind & 8 && t >= 64) return;
#pragma unroll 1
    for (int i = 0; kind & 16 && t >= 64 && i < 1000; ++i) asm volatile("nanosleep.u32 1;");
    float d[32] = {};
    const unsigned long long plain = kind & 1 ? 1ull << 62 : 0;
    const auto of_a = ptx::matrix_descriptor(at, 16, 1024) ^ plain;
    const auto of_b = ptx::matrix_descriptor(at + (kind & 2 ? 1 << 16 : 8192), 16, 1024);
    ptx::wgmma_fence();
    ptx::Wgmma<ptx::f16, 64, false>::multiply(d, of_a, of_b, 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(d);
    for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 4; ++i)
            c[(t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * 64 + j * 8 + t % 4 * 2 + i % 2] = d[j * 4 + i];
}
"""  # noqa: E501


@cache
def code() -> str:
    return nvrtc.compile_text(
        SOURCE, "product.cu", "kernel", HOPPER, feature_target=True, cubin=False
    ).ptx


def multiplied(kind: int = 0, threads: int = 128, text: str = "") -> tuple[Any, Any]:
    machine = Machine(HOPPER)
    program = machine.load(text or code())
    rng = np.random.default_rng(3)
    a, b = (encode("fp16", rng.integers(-4, 5, (64, 16))) for _ in range(2))
    on = [machine.alloc(n) for n in (a.nbytes, b.nbytes, 64 * 64 * 4)]
    for address, values in zip(on, (a, b), strict=False):
        machine.write(address, values)
    params = [*(np.uint64(x).tobytes() for x in on), np.int32(kind).tobytes()]
    machine.launch(program, "kernel", (1,), (threads,), params, 16384)
    c = machine.read(on[2], 64 * 64 * 4).view(np.float32).reshape(64, 64)
    return c, decode("fp16", a) @ decode("fp16", b).T


@pytest.mark.parametrize("kind", [0, 16], ids=["together", "late"])
def test_one_product(kind: int) -> None:
    """Warps wait for the others of their group."""
    got, want = multiplied(kind)
    np.testing.assert_array_equal(got, want)


def test_the_sums_are_read_as_well_as_written() -> None:
    (found,) = Machine(HOPPER).load(code()).entries.values()
    (instr,) = [i for i in found.kernel.code if i.opcode.startswith("wgmma.mma_async")]
    assert len(destinations(instr)) == 32
    assert {r.name for r in destinations(instr)} <= {r.name for r in sources(instr)}


@pytest.mark.parametrize(
    ("kind", "fault"), [(2, "out_of_bounds"), (4, "uninitialised"), (8, "warp_divergence")]
)
def test_faults_have_a_name_and_a_line(kind: int, fault: str) -> None:
    with pytest.raises(FaultError, match=r"wgmma") as error:
        multiplied(kind, threads=128 if kind != 8 else 96)
    assert error.value.details["fault"] == fault
    assert error.value.details["line"] > 0


def test_another_layout_is_refused_by_name() -> None:
    with pytest.raises(BuildError, match="128-byte swizzle"):
        multiplied(1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (".f32.f16.f16 ", ".f16.f16.f16 "),  # half sums
        (", p, 1, 1, 0, 0;", ", p, -1, 1, 0, 0;"),  # a negated operand
        ("wgmma.wait_group.sync.aligned", "wgmma.wait_group.sync"),
    ],
)
def test_what_is_not_emulated_stops_at_load(before: str, after: str) -> None:
    assert before in code()
    with pytest.raises(BuildError, match="does not implement `wgmma"):
        multiplied(text=code().replace(before, after))


def test_no_row_of_the_lab_is_refused_on_9_0() -> None:
    dims = {"m": 64, "n": 64, "k": 64}
    every = [*registry.cases("matmul", kernel="wgmma,wgmma_3xtf32,wgmma-tma"), Case(
        next(s for s in registry.specs("matmul") if s.name == "wgmma"), wgmma.VARIANTS[0]
    )]  # fmt: skip
    assert [case.refusal(HOPPER, "emulated", dims) for case in every] == [None] * len(every)
    assert every[0].refusal((8, 9), "emulated", dims) == "needs sm_90"
