"""The ladder: its rungs in order, what each differs in, and the gains that are shown."""

import io
import itertools

import pytest
from rich.console import Console

from gpulab import arch, registry
from gpulab.bench import ladder
from gpulab.kernels.matmul import wgmma_ladder
from gpulab.kernels.matmul.wgmma_ladder import LADDER, RUNGS, VARIANT
from gpulab.runtime import nvrtc, resources

DIMS = {"m": 4096, "n": 4096, "k": 4096}


def test_the_rungs_lead_from_mma_to_wgmma_and_the_library_stands_beside():
    names = [case.spec.name for case in ladder.rungs()]
    assert names == [*LADDER, "cublas"]
    assert {(c.variant.format, c.variant.output) for c in ladder.rungs()} == {("bf16", "fp32")}
    table = {case.spec.name for case in registry.cases("matmul")}
    assert table.isdisjoint(rung.name for rung in RUNGS)  # no rows of the op's own table


def test_each_rung_differs_from_the_one_before_in_one_thing():
    changes = []
    for before, after in itertools.pairwise(RUNGS):
        fields = [
            f for f in ("specialised", "persistent") if getattr(before, f) != getattr(after, f)
        ]
        tile = [f for f in ("block_m", "block_n", "pair_m", "pair_n", "stages", "consumers")
                if getattr(before.tile, f) != getattr(after.tile, f)]  # fmt: skip
        changes.append(fields + tile)
    assert changes == [["specialised"], ["block_n"], ["persistent"], ["pair_m"]]


@pytest.mark.parametrize("rung", RUNGS, ids=lambda r: r.name)
def test_a_rung_compiles_without_spills_or_serialisation(rung):
    build = wgmma_ladder.build(rung, VARIANT, (9, 0), DIMS)
    made = nvrtc.compile_cubin(build.source, build.entry, (9, 0), feature_target=True)
    used = resources.parse(made.log, made.lowered, made.ptx)
    plan = wgmma_ladder.plan(rung, VARIANT, (9, 0), DIMS)
    assert used.spill_bytes == used.stack_bytes == 0
    assert used.warnings == ()
    assert used.max_threads_per_block == plan.block[0]
    assert plan.shared_bytes <= arch.get((9, 0)).shared_per_block_bytes
    # What a rung's name says is in its code, and what it does not yet have is not.
    assert ("setmaxnreg" in made.ptx) == rung.specialised
    assert ("multicast::cluster" in made.ptx) == (rung.name == "wgmma-multicast")
    assert "cp.async.bulk.tensor.2d.global" not in made.ptx
    assert f"m64n{rung.tile.block_n}k16" in made.ptx


def test_plans_pass_c_as_a_pointer_and_cover_it():
    for rung in RUNGS:
        plan = wgmma_ladder.plan(rung, VARIANT, (9, 0), DIMS)
        assert [box.param for box in plan.maps] == ["a", "b"]
        assert plan.persistent == rung.persistent
        tiles = (4096 // rung.tile.block_m) * (4096 // rung.tile.block_n)
        assert plan.grid == (tiles, 1, 1)


def record(kernel, ms, verdict="PASS"):
    return {
        "op": "matmul", "kernel": kernel, "verdict": verdict, "reason": "no card", "lesson": False,
        "backend": "library" if kernel == "cublas" else "raw",
        "time_ms": None if ms is None else {"median": ms}, "tflops": 100.0, "max_abs_err": 1e-3,
        "arithmetic_gate": {"fraction": 0.5},
        "resources": {"registers": 90, "shared_bytes": 131136},
        "vs_library": {"ratio": 0.5},
    }  # fmt: skip


def test_gains_are_ratios_to_the_rung_before():
    rows = [record("mma", 4.0), record("wgmma-tma", 2.0), record("wgmma-roles", None, None),
            record("wgmma-wide", 1.6), record("cublas", 1.0)]  # fmt: skip
    made = ladder.with_gains(rows)
    assert [r["gain"] for r in made] == [None, 2.0, None, 1.25, None]
    console = Console(file=io.StringIO(), width=220)
    console.print(ladder.table(made, "matmul 4096"))
    text = console.file.getvalue()
    assert "2.00x" in text
    assert "1.25x" in text
    assert "131136" in text
    assert "no card" in text
    assert RUNGS[0].idea in text
