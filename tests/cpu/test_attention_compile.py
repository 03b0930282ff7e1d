"""Attention kernels: tiles by capability spill nothing, fit, use the declared instruction."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from gpulab import arch
from gpulab.kernels.attention import fp8, mma, simt
from gpulab.registry import Capability
from gpulab.runtime import nvrtc, resources

FP16, BF16 = mma.VARIANTS
WIDEST = ((64, True), (128, False), (128, True), (256, True))
"""Head dims at which a tile is used to its last register, without and with bias and mask."""


def dims(head_dim: int, extra: bool = False, **changes: int) -> dict[str, int]:
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_k")
    found = dict.fromkeys(names, 64) | {"head_dim": head_dim, "causal": 1, "window": 0}
    return found | {"bias_planes": int(extra), "mask_planes": int(extra)} | changes


MMA = [(mma, FP16, c, d, e) for c in arch.EMULATED for d, e in WIDEST]
FP8 = [
    (fp8, fp8.VARIANTS[0], c, d, e)
    for c in arch.EMULATED
    if c >= (8, 9)
    for d, e in ((128, True), (160, True), (192, False))
]
ALIKE = {(8, 6): (8, 9)}
"""The tiles and the registers of another: compiled in `make test-whole` alone."""


def _rows():
    """`make test` compiles every other one of a capability, the odd ones and the even ones in
    turn."""
    turn = {c: n for n, c in enumerate(arch.EMULATED)}
    for cases in (MMA, FP8):
        number = defaultdict(int)
        for case in cases:
            capability = case[2]
            is_left = capability in ALIKE or (number[capability] + turn[capability]) % 2
            number[capability] += 1
            yield pytest.param(*case, marks=[pytest.mark.whole] if is_left else [])


@pytest.mark.parametrize(
    ("module", "variant", "capability", "head_dim", "extra"),
    list(_rows()),
)
def test_no_spill_and_the_declared_instruction(module, variant, capability, head_dim, extra):
    d = dims(head_dim, extra)
    request = module.build(variant, capability, d)
    made = nvrtc.compile_cubin(request.source, request.entry, capability)
    used, row = resources.parse(made.log, made.lowered, made.ptx), arch.get(capability)
    plan = module.plan(variant, capability, d)
    assert used.spill_bytes == 0
    assert used.stack_bytes == 0
    assert used.warnings == ()
    assert used.max_threads_per_block == plan.block[0]
    assert plan.block[0] * used.registers <= row.registers_per_sm
    assert plan.shared_bytes <= row.shared_per_block_bytes
    _, _, shape, *types = (variant.instruction(capability) or "").split(".")
    spelled = f"mma.sync.aligned.{shape}.row.col.{'.'.join(types)}"
    assert set(re.findall(r"mma\.sync\.aligned[.\w]+", made.ptx)) == {spelled}
    assert ("cp.async.cg" in made.ptx) == (capability >= (8, 0))


@pytest.mark.parametrize(("capability", "other"), ALIKE.items())
def test_what_is_alike_has_the_same_tiles(capability: Capability, other: Capability) -> None:
    for d, extra in WIDEST:
        entries = {mma.build(FP16, c, dims(d, extra)).entry for c in (capability, other)}
        assert len(entries) == 1


def test_the_spill_check_sees_a_spill() -> None:
    """And why head dims above 128 have one row tile a warp."""
    request = mma.build(FP16, (9, 0), dims(256))
    entry = request.entry.replace(mma.tile((9, 0), 256).cpp, mma.Tile(4, 2, 32).cpp)
    assert entry != request.entry
    made = nvrtc.compile_cubin(request.source, entry, (9, 0))
    assert resources.parse(made.log, made.lowered).spill_bytes > 0


@pytest.mark.parametrize("capability", arch.EMULATED)
def test_every_tile_fits_at_every_head_dim(capability: Capability) -> None:
    row = arch.get(capability)
    for head_dim in range(1, 257):
        for extra in (False, True):
            t = mma.tile(capability, head_dim, extra)
            shared = t.shared_bytes(head_dim)
            assert shared <= row.shared_per_block_bytes, head_dim
            assert t.blocks * (shared + row.shared_reserved_bytes) <= row.shared_per_sm_bytes
            assert t.asynchronous == (capability >= (8, 0))
        assert simt.shared_bytes(dims(head_dim)) <= row.shared_per_block_bytes


def test_grids_cover_every_query_once() -> None:
    for seq_q in (1, 15, 16, 127, 128, 129, 4096):
        for module, variant in ((mma, BF16), (simt, simt.VARIANTS[0]), (fp8, fp8.VARIANTS[0])):
            d = dims(64, batch=3, heads=5, seq_q=seq_q)
            plan = module.plan(variant, (9, 0), d)
            rows = simt.ROWS if module is simt else module.tile((9, 0), 64).rows
            tiles = plan.grid[0] // 15
            assert plan.grid == (tiles * 15, 1, 1)
            assert (tiles - 1) * rows < seq_q <= tiles * rows


def test_limits_are_refused_with_a_reason() -> None:
    long = dims(64, seq_k=2**31 - 1)
    assert "32-bit" in (mma.supports(BF16, (9, 0), long) or "")
    assert "head_dim" in (simt.supports(simt.VARIANTS[0], (9, 0), dims(257)) or "")
    assert "tiles" in (simt.supports(simt.VARIANTS[0], (9, 0), dims(64, seq_q=2**30)) or "")
    assert "multiple of 16" in (fp8.supports(fp8.VARIANTS[0], (9, 0), dims(72)) or "")
    assert mma.supports(BF16, (9, 0), dims(256)) is None
    assert fp8.supports(fp8.VARIANTS[0], (9, 0), dims(192)) is None
    assert "bias" in (fp8.supports(fp8.VARIANTS[0], (9, 0), dims(192, True)) or "")


def test_only_bias_or_mask_pay_for_them() -> None:
    """Without them the kernel reads neither array."""
    plain, extra = (mma.build(BF16, (9, 0), dims(128, e)).entry for e in (False, True))
    assert plain.endswith("128, false>")
    assert extra.endswith("128, true>")
    for planes in ("bias_planes", "mask_planes"):
        assert mma.build(BF16, (9, 0), dims(128) | {planes: 1}).entry == extra
