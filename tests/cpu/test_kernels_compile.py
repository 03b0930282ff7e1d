"""Every raw kernel of the registry compiles for every capability, without spilling a register.

The figures are read from what ptxas says about the compiled object, for each row and each
capability that may run it; a kernel added to the registry is covered without a change here.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpulab import arch, registry
from gpulab.formats import storage_dtype
from gpulab.kernels.matmul import mma
from gpulab.registry import Capability, Case, LaunchPlan, RawBuild, Variant
from gpulab.runtime import assembly
from gpulab.runtime.resources import Resources

OPS = sorted({spec.op for spec in registry.specs()})
ROW_SIZES: dict[Capability, int] = {(7, 5): 33, (9, 0): 64}
"""Row operations have no instruction of one capability: two stand for all, at a size each."""


def _capabilities(case: Case) -> tuple[Capability, ...]:
    dims = set().union(*(p.dims for p in case.spec.params(case.variant)))
    return tuple(ROW_SIZES) if dims == {"rows", "cols"} else arch.EMULATED


ROWS = [
    (case, capability)
    for op in OPS
    for case in registry.cases(op)
    if case.spec.backend == "raw"
    for capability in _capabilities(case)
    if case.refusal(capability, "cuda") is None
]
CASES = list(dict.fromkeys(case for case, _ in ROWS))
SIZES = (64, 33)
"""An instantiation may follow from the dims: rows that are aligned, and rows that are not."""
SAMPLED = ((7, 5), (9, 0))
"""Where `make test` compiles every row, aligned or not (for 7.5 every other one);
elsewhere it compiles every other one, aligned, and kernels take turns with capabilities.
`make test-whole` leaves nothing out."""
LESSONS = ((9, 0),)
"""Where it compiles lessons, for rows that are aligned."""
ALIKE: dict[Capability, Capability] = {(8, 6): (8, 9)}
"""Has the registers and the shared memory of another: compiled in `make test-whole` alone."""


def _dims(case: Case, size: int) -> dict[str, int]:
    params = case.spec.params(case.variant)
    names = {p.name for p in params if p.role == "dim"}.union(*(p.dims for p in params))
    return dict.fromkeys(names, size)


def _build(case: Case, capability: Capability, size: int) -> RawBuild:
    assert case.spec.build is not None
    build = case.spec.build(case.variant, capability, _dims(case, size))
    assert isinstance(build, RawBuild)
    return build


def _builds() -> list[tuple[Case, Capability, int]]:
    """Every distinct instantiation of every row, with a size that leads to it."""
    found = []
    for case, capability in ROWS:
        seen = set()
        whole = _capabilities(case) == arch.EMULATED
        for size in SIZES if whole else (ROW_SIZES[capability],):
            build = _build(case, capability, size)
            if build not in seen:
                seen.add(build)
                found.append((case, capability, size))
    return found


def _name(row: tuple[Case, Capability, int]) -> str:
    case, (major, minor), size = row
    return f"{case.spec.op}-{case.label}-sm_{major}{minor}-{size}".replace(" ", "")


def _plan(case: Case, capability: Capability, size: int) -> LaunchPlan:
    assert case.spec.plan is not None
    return case.spec.plan(case.variant, capability, _dims(case, size))


def findings(used: Resources, plan: LaunchPlan, row: arch.Arch) -> list[str]:
    """What keeps a compiled kernel from running well, or at all, with this launch shape."""
    found = list(used.warnings)
    threads = plan.block[0] * plan.block[1] * plan.block[2]
    if used.spill_bytes or used.stack_bytes:
        found.append(f"{used.spill_bytes} bytes spilled, {used.stack_bytes} bytes of stack")
    if used.registers * threads > row.registers_per_sm:
        found.append(f"{used.registers} registers x {threads} threads exceed an SM's")
    if used.max_threads_per_block is not None and threads > used.max_threads_per_block:
        found.append(f"{threads} threads, bounded to {used.max_threads_per_block}")
    shared = used.shared_bytes + plan.shared_bytes
    if shared > row.shared_per_block_bytes:
        found.append(f"{shared} bytes of shared memory, {row.shared_per_block_bytes} allowed")
    return found


def mma_findings(case: Case, capability: Capability, ptx: str, bound: int | None) -> list[str]:
    """Whether a matmul row multiplies by the mma.sync that it declares, a full tile of them."""
    declared = case.variant.instruction(capability) or ""
    if case.spec.op != "matmul" or not declared.startswith("mma.sync."):
        return []
    _, _, shape, *types = declared.split(".")
    spelled = f"mma.sync.aligned.{shape}.row.col.{'.'.join(types)}"
    used = re.findall(r"mma\.sync\.aligned[.\w]+", ptx)
    found = [f"{other}, {spelled} declared" for other in sorted(set(used) - {spelled})]
    if case.spec.name != "mma":
        return found
    tile = mma.tile(case.variant, capability)
    m, n, k = map(int, re.findall(r"\d+", shape))
    depth = tile.slab_bytes // storage_dtype(case.variant.format).itemsize
    full = (tile.warp_m // m) * (tile.warp_n // n) * (depth // k)
    if len(used) != full:
        found.append(f"{len(used)} of {spelled}, a warp tile takes {full}")
    if bound != tile.threads:
        found.append(f"compiled for {bound} threads, launched with {tile.threads}")
    return found


def _is_sampled(row: tuple[Case, Capability, int]) -> bool:
    case, capability, size = row
    if capability in ALIKE:
        return False
    if case.variant.lesson:
        return capability in LESSONS and size == SIZES[0]
    turn = CASES.index(case) + arch.EMULATED.index(capability)
    if capability == (7, 5):
        return turn % 2 == 0
    return capability in SAMPLED or (size == SIZES[0] and turn % 2 == 0)


@pytest.mark.parametrize(
    "row",
    [pytest.param(r, marks=[] if _is_sampled(r) else [pytest.mark.whole]) for r in _builds()],
    ids=_name,
)
def test_compiles_without_spills_within_the_capabilitys_limits(
    row: tuple[Case, Capability, int],
) -> None:
    case, capability, size = row
    params = case.spec.params(case.variant)
    code = assembly.prepare(_build(case, capability, size), params, capability)
    assert f".entry {code.entry}(" in code.ptx
    assert code.cubin_path is not None
    assert code.cubin_path.stat().st_size > 0
    assert code.resources is not None
    assert findings(code.resources, _plan(case, capability, size), arch.get(capability)) == []
    bound = code.resources.max_threads_per_block
    assert mma_findings(case, capability, code.ptx, bound) == []


def test_another_instruction_than_the_declared_one_is_found() -> None:
    case = next(registry.cases("matmul", kernel="mma"))
    tile = mma.tile(case.variant, (8, 9))
    declared = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    full = 64 * 64 * 32 // (16 * 8 * 16)  # 64 bytes of k are 32 terms
    assert mma_findings(case, (8, 9), f"{declared} {{}};\n" * full, tile.threads) == []
    other = mma_findings(case, (8, 9), declared.replace("k16", "k8") * full, tile.threads)
    assert any("m16n8k8" in each for each in other)
    fewer = mma_findings(case, (8, 9), f"{declared} {{}};\n" * (full - 1), tile.threads)
    assert fewer == [f"{full - 1} of {declared}, a warp tile takes {full}"]
    threads = mma_findings(case, (8, 9), f"{declared} {{}};\n" * full, tile.threads // 2)
    assert "threads" in threads[0]


def test_the_registry_has_raw_matmul_rows_for_every_capability() -> None:
    compiled = {(c.spec.name, capability) for c, capability in ROWS if c.spec.op == "matmul"}
    for capability in arch.EMULATED:
        assert {("simt", capability), ("blocked", capability), ("mma", capability)} <= compiled


@pytest.mark.parametrize(("capability", "other"), ALIKE.items())
def test_what_is_alike_has_the_same_limits(capability: Capability, other: Capability) -> None:
    mine, theirs = arch.get(capability), arch.get(other)
    for limit in ("registers_per_sm", "shared_per_block_bytes", "shared_per_sm_bytes"):
        assert getattr(mine, limit) == getattr(theirs, limit)
    for case, at in ROWS:
        if at == capability:
            assert (case, other) in ROWS


def test_a_kernel_that_spills_is_found() -> None:
    # 256 threads of 8 x 16 results, four blocks an SM: 64 registers for 128 results.
    crowded = RawBuild("matmul/blocked.cu", "matmul_blocked<256, 128, 16, 4, 2, 8, 16, 3, 4, true>")
    case = next(registry.cases("matmul", kernel="blocked"))
    code = assembly.prepare(crowded, case.spec.params(case.variant), (9, 0))
    assert code.resources is not None
    found = findings(code.resources, _plan(case, (9, 0), 64), arch.get((9, 0)))
    assert any("spilled" in each for each in found)


FINE = Resources(
    registers=64,
    stack_bytes=0,
    spill_store_bytes=0,
    spill_load_bytes=0,
    shared_bytes=1024,
    barriers=1,
    max_threads_per_block=256,
)


@pytest.mark.parametrize(
    ("used", "plan", "word"),
    [
        (replace(FINE, stack_bytes=8), LaunchPlan((1, 1, 1), (256, 1, 1)), "stack"),
        (replace(FINE, registers=255), LaunchPlan((1, 1, 1), (512, 1, 1)), "registers"),
        (FINE, LaunchPlan((1, 1, 1), (16, 17, 1)), "threads"),
        (FINE, LaunchPlan((1, 1, 1), (256, 1, 1), 64 * 1024), "shared memory"),
        (replace(FINE, warnings=("(C7510) serialised",)), LaunchPlan((1,) * 3, (32, 1, 1)), "C75"),
    ],
)
def test_each_limit_is_checked(used: Resources, plan: LaunchPlan, word: str) -> None:
    assert findings(FINE, LaunchPlan((1, 1, 1), (256, 1, 1), 1024), arch.get((7, 5))) == []
    assert any(word in each for each in findings(used, plan, arch.get((7, 5))))


def test_variants_of_one_kernel_are_told_apart() -> None:
    """A row's build must depend on its formats: no two rows of a kernel compile to one entry."""
    for op in OPS:
        entries: dict[tuple[str, Capability, str], Variant] = {}
        for case, capability in ROWS:
            if case.spec.op != op:
                continue
            build = _build(case, capability, 64)
            key = (build.source, capability, build.entry + str(build.defines))
            assert key not in entries, f"{case.label} compiles to the entry of {entries[key]}"
            entries[key] = case.variant
