"""Occupancy against cases worked out by hand from the published limits."""

import pytest

from gpulab import arch
from gpulab.emulator.occupancy import occupancy
from gpulab.errors import UsageError


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        # sm_80: 64 warps; 256 threads = 8 warps; 32 regs * 32 = 1024 a warp: 64 warps, 8 blocks.
        ((8, 0), 256, 32, 0, 8, ("warps", "registers")),
        # 40 regs: 1280 a warp; 16384 // 1280 = 12 warps a partition, 48 in all: 6 blocks.
        ((8, 0), 256, 40, 0, 6, ("registers",)),
        # The same of 3 warps: 48 hold 16 blocks; 51 in one pool would hold 17.
        ((8, 0), 96, 40, 0, 16, ("registers",)),
        # 33 regs: 1056 rounds up to 1280 in units of 256: the same 6 blocks.
        ((8, 0), 256, 33, 0, 6, ("registers",)),
        # 128 regs: 4096 a warp, 4 a partition, 16 warps: 2 blocks.
        ((8, 0), 256, 128, 0, 2, ("registers",)),
        # 255 regs: 8160 -> 8192 a warp, 2 a partition, 8 warps: 1 block of 256, none of 512.
        ((8, 0), 256, 255, 0, 1, ("registers",)),
        ((8, 0), 512, 255, 0, 0, ("registers",)),
        # One warp a block: 32 blocks is the limit long before 64 warps.
        ((8, 0), 32, 32, 0, 32, ("blocks",)),
        # 164 KiB: 48 KiB + 1 KiB reserved = 49 KiB, three times in 164 KiB.
        ((8, 0), 128, 32, 48 * 1024, 3, ("shared memory",)),
        # 163 KiB is the most one block may ask; one byte more cannot be launched.
        ((8, 0), 128, 32, 163 * 1024, 1, ("shared memory",)),
        ((8, 0), 128, 32, 163 * 1024 + 1, 0, ("shared memory",)),
        # sm_75: 32 warps, no reserve: 32 KiB twice in 64 KiB, 4 blocks of 8 warps by warps.
        ((7, 5), 256, 32, 32 * 1024, 2, ("shared memory",)),
        ((7, 5), 256, 64, 0, 4, ("warps", "registers")),
        # sm_75: 16 blocks; without shared memory and a reserve it is not what limits them.
        ((7, 5), 32, 34, 0, 16, ("blocks",)),
        ((7, 5), 64, 0, 0, 16, ("warps", "blocks")),
        # Where 4 KiB fit 16 times in 64 KiB both do.
        ((7, 5), 32, 34, 4096, 16, ("blocks", "shared memory")),
        # sm_75 units are 256 bytes: 5461 -> 5632, 11 times in 65536 (12 if bytes counted singly).
        ((7, 5), 64, 32, 5461, 11, ("shared memory",)),
        # sm_86/89: 48 warps: 5 blocks of 9 warps (288 threads); 56 regs = 1792: 9 * 4 = 36 warps.
        ((8, 9), 288, 32, 0, 5, ("warps",)),
        ((8, 9), 288, 56, 0, 4, ("registers",)),
        # sm_90: 228 KiB hold 101 KiB twice.
        ((9, 0), 384, 24, 100 * 1024, 2, ("shared memory",)),
        # 24 regs: 768 a warp, 21 * 4 = 84 warps, which hold two blocks of 32, as 64 warps do.
        ((9, 0), 1024, 24, 0, 2, ("warps", "registers")),
        # 1024 threads at 65 regs: 2304 a warp * 32 = 73728 > 65536: cannot be launched.
        ((9, 0), 1024, 65, 0, 0, ("registers",)),
        # 100 threads take 4 whole warps: 16 blocks of 4.
        ((9, 0), 100, 32, 0, 16, ("warps", "registers")),
    ],
)
def test_hand_computed(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared: int,
    blocks: int,
    limited_by: tuple[str, ...],
) -> None:
    found = occupancy(arch.get(capability), threads, registers, shared)
    assert found.blocks_per_sm == blocks
    assert found.limited_by == limited_by


def test_fraction_is_warps_over_the_most() -> None:
    found = occupancy(arch.get((8, 9)), 256, 48, 0)
    # 48 regs = 1536 a warp, 10 a partition, 40 warps, 5 blocks = 40 of 48 warps.
    assert (found.warps_per_sm, found.max_warps_per_sm) == (40, 48)
    assert found.fraction == pytest.approx(40 / 48)


def test_uneven_warps_are_checked_in_whole_rounds() -> None:
    # 5 warps at 255 registers: 8192 * 8 (rounded to 4s) = 65536 just fits; 9 warps need 12.
    assert occupancy(arch.get((8, 0)), 160, 255).blocks_per_sm == 1
    assert occupancy(arch.get((8, 0)), 288, 255).blocks_per_sm == 0


@pytest.mark.parametrize(
    ("threads", "registers", "shared"), [(0, 32, 0), (1025, 32, 0), (32, -1, 0), (32, 32, -1)]
)
def test_refuses_what_cannot_be(threads: int, registers: int, shared: int) -> None:
    with pytest.raises(UsageError):
        occupancy(arch.get((8, 0)), threads, registers, shared)
