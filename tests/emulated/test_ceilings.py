"""The kernels that measure ceilings: right values, counted work, and what is said when they err."""

import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from gpulab.bench import ceiling_kernels, ceilings
from gpulab.bench.ceiling_kernels import Size, amplitude, of_capability, operands
from gpulab.formats import encode, get
from gpulab.numerics import tensorcore
from gpulab.registry import RawBuild
from gpulab.runtime import nvrtc, resources, sources
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.telemetry import Telemetry
from gpulab.runtime.timing import Timing

SMALL = Size(multiprocessors=1, pairs=2, memory_bytes=1 << 18)


def chosen(capability, kind, fmt, accumulator):
    (found,) = [
        c
        for c in of_capability(capability)
        if (c.kind, c.format, c.accumulator) == (kind, fmt, accumulator)
    ]
    return found


RUNNABLE = [
    pytest.param(capability, c.kind, c.format, c.accumulator, id=f"{capability[0]}.{c.label}")
    for capability, wanted in (((8, 9), None), ((7, 5), {"int8", "fp16"}), ((12, 0), {"e2m1"}))
    for c in of_capability(capability)
    if wanted is None or c.format in wanted
]


@pytest.fixture(scope="module")
def counting():
    return {c: EmulatedDevice(c, counters=True) for c in ((7, 5), (8, 9), (12, 0))}


@pytest.mark.parametrize(("capability", "kind", "fmt", "accumulator"), RUNNABLE)
def test_results_are_exact_and_the_work_claimed_is_done(
    counting, capability, kind, fmt, accumulator
):
    ceiling = chosen(capability, kind, fmt, accumulator)
    work = ceiling.work(SMALL)
    bound = ceilings.Bound(counting[capability], ceiling, work)
    counters = bound.launch().counters
    assert bound.verify() is None
    if kind == "mma.sync":
        assert counters["tensor_products"] == work.multiply_adds
        assert work.moved_bytes == 0
    elif kind == "fma":
        assert 32 * counters["opcode.fma.rn.f32"] == work.multiply_adds
    else:
        sums = work.right.nbytes if kind == "read" else 0
        assert counters["global_sector_bytes"] == work.moved_bytes + sums
    bound.refill(0)
    assert "elements are wrong" in bound.verify()


MUTATIONS = {
    "mma.cu": ("tile.add(second);", ""),
    "fma.cu": ("pair < pairs;", "pair < pairs - 1;"),
    "memory.cu": ("i < kCopies; ++i) to[", "i < kCopies - 1; ++i) to["),
}


@pytest.mark.parametrize(
    ("name", "kind", "fmt"),
    [("mma.cu", "mma.sync", "e4m3"), ("fma.cu", "fma", "fp32"), ("memory.cu", "copy", "bytes")],
)
def test_a_kernel_that_does_less_is_caught(tmp_path, name, kind, fmt):
    text = (sources.root() / "ceilings" / name).read_text()
    before, after = MUTATIONS[name]
    assert text.count(before) == 1
    (tmp_path / name).write_text(text.replace(before, after))
    accumulator = "" if fmt == "bytes" else "fp32"
    ceiling = chosen((8, 9), kind, fmt, accumulator)
    build = RawBuild(str(tmp_path / name), ceiling.build.entry)
    device = EmulatedDevice((8, 9))
    bound = ceilings.Bound(
        device, ceilings.Ceiling(**vars(ceiling) | {"build": build}), ceiling.work(SMALL)
    )
    bound.launch()
    assert bound.verify() is not None


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "int8"])  # the others differ by a letter
def test_wgmma_compiles_to_a_loop_that_nothing_holds_up(fmt):
    ceiling = chosen((9, 0), "wgmma", fmt, "int32" if fmt == "int8" else "fp32")
    made = nvrtc.compile_cubin(
        ceiling.build.source, ceiling.build.entry, (9, 0), feature_target=True
    )
    used = resources.parse(made.log, made.lowered, made.ptx)
    assert (used.spill_bytes, used.stack_bytes, used.warnings) == (0, 0, ())
    assert used.max_threads_per_block == ceiling.work(SMALL).plan.block[0]
    shape = ceiling.instruction.split(".")[1]
    assert made.ptx.count(f"wgmma.mma_async.sync.aligned.{shape}") == 3 * 4


@pytest.mark.parametrize("fmt", ["fp16", "e4m3"])
def test_no_mma_kernel_spills(fmt):
    """On sm_90 fp8 operands are widened in registers: the tile must leave room for that."""
    ceiling = chosen((9, 0), "mma.sync", fmt, "fp32")
    made = nvrtc.compile_cubin(ceiling.build.source, ceiling.build.entry, (9, 0))
    used = resources.parse(made.log, made.lowered, made.ptx)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)


EXACT = [
    ((9, 0), "wgmma", fmt, "fp32") for fmt in ceiling_kernels.WGMMA_FORMATS if fmt != "int8"
] + [((8, 9), "mma.sync", "e4m3", "fp32"), ((8, 0), "mma.sync", "fp16", "fp16")]  # fmt: skip


@pytest.mark.parametrize(("capability", "kind", "fmt", "accumulator"), EXACT)
def test_sums_stay_exact_in_the_accumulator_to_the_last_pair(capability, kind, fmt, accumulator):
    """The tensor core's own arithmetic, from the sums that all pairs but one have left."""
    ceiling, row = chosen(capability, kind, fmt, accumulator), get(fmt)
    depth = ceiling_kernels.WGMMA_K_BYTES if kind == "wgmma" else ceiling_kernels.MMA_K_BYTES
    k = depth // row.storage.itemsize
    a, b1, b2 = operands(row, accumulator, 16, 8, k, ceilings.PAIRS)
    codes = [encode(row, x) for x in (a, b1.T, b2.T)]
    bits = np.uint16 if accumulator == "fp16" else np.uint32
    held = np.full((16, 8), ceilings.PAIRS - 1, f"f{bits().itemsize}").view(bits)
    step = 32 // row.storage.itemsize
    for b in (codes[1], codes[2], codes[1]):
        for at in range(0, k, step):
            part = slice(at, at + step)
            left, right = codes[0][:, part], np.ascontiguousarray(b[part])
            held = tensorcore.mma(left, right, held, ceiling.instruction, capability)
    want = ceilings.PAIRS + a @ b1.T
    assert np.array_equal(held.view(f"f{bits().itemsize}").astype(np.float64), want)


def test_operands_have_the_whole_significand_where_sums_allow_it():
    assert amplitude(get("e4m3"), "fp32", 32, 1024) == 15
    assert amplitude(get("bf16"), "fp32", 64, 1024) == 255
    assert amplitude(get("int8"), "int32", 32, 1024) == 127
    assert amplitude(get("e4m3"), "fp32", 128, 1024) == 7
    with pytest.raises(ValueError, match="exceed"):
        amplitude(get("fp16"), "fp16", 16, 2048)
    a, b1, b2 = operands(get("bf16"), "fp32", 16, 8, 16, 4)
    assert ((a @ (b1 + b2).T) == 1).all()
    assert len(np.unique(a)) > 64


class Ticks:
    """A clock whose every kernel takes the same time."""

    l2_bytes, flush_bytes = 1000, 2000

    def __init__(self, ms):
        self.ms, self.count = ms, itertools.count()

    def record(self):
        return next(self.count)

    def passed(self, event):
        return False

    def elapsed_ms(self, start, stop):
        return self.ms * (stop - start)

    def host_ms(self):
        return 0.0

    def flush(self):
        pass

    def synchronize(self):
        pass

    def telemetry(self):
        return Telemetry(sm_clock_mhz=1000, power_w=500.0)


def measured(fmt):
    return ceilings.measure(
        EmulatedDevice((8, 9)), Ticks(2.0), lambda c: c.format == fmt and c.kind != "read",
        runs=2, size=SMALL,
    )  # fmt: skip


def test_rates_are_work_by_time():
    (record,) = measured("bf16")
    products = 8 * 64 * 32 * 16 * 5  # warps, tile, k, 2 pairs and one
    assert record["verdict"] == "PASS"
    assert record["tflops"] == pytest.approx(2 * products / 2e-3 * 1e-12)
    assert record["work"] == {"multiply_adds": products, "bytes": 0}
    assert record["instruction"] == "mma.sync.m16n8k16.f32.bf16.bf16.f32"
    (record,) = measured("bytes")
    assert record["gb_per_s"] == pytest.approx(2 * (1 << 18) / 2e-3 * 1e-9)
    assert record["tflops"] is None


def test_a_wrong_result_has_no_rate(monkeypatch):
    monkeypatch.setattr(ceilings.Bound, "verify", lambda self: "[0] is 1, not 2")
    (record,) = measured("bf16")
    assert record["verdict"] == "FAIL"
    assert "did not do its work" in record["reason"]
    assert record["tflops"] is None
    console = Console(file=io.StringIO(), width=200)
    console.print(ceilings.table([record]))
    assert "[0] is 1, not 2" in console.file.getvalue()


def test_a_kernel_that_does_not_build_is_named(monkeypatch):
    real = ceiling_kernels.memory("copy")[0]
    broken = vars(real) | {"build": RawBuild("ceilings/memory.cu", "no_such_kernel")}
    monkeypatch.setattr(ceilings, "of_capability", lambda _: [ceilings.Ceiling(**broken)])
    (record,) = ceilings.measure(EmulatedDevice((8, 9)), Ticks(1.0), size=SMALL)
    assert record["verdict"] is None
    assert record["reason"].startswith("does not build")


def test_the_clock_turns_a_rate_into_work_a_cycle():
    work = ceiling_kernels._fma().work(SMALL)
    timing = Timing("events", 1, "flushed", 1, 0, 0, 1, samples_ms=[1.0])
    assert "flop_per_clock_per_sm" not in ceilings.rate(work, timing, 2)
    timing.before = timing.after = Telemetry(sm_clock_mhz=1000)
    found = ceilings.rate(work, timing, 2)
    assert found["flop_per_clock_per_sm"] == pytest.approx(work.multiply_adds / 1e6)
