"""Growing memory: what it held stays, and what is new is guard pattern that nobody wrote."""

from __future__ import annotations

import errno
import mmap

import numpy as np
import pytest
from cudacase import ptx

from gpulab.emulator.globalmem import FIRST_BYTES, GUARD_BYTE, GUARD_BYTES
from gpulab.emulator.machine import Machine
from gpulab.emulator.spaces import GLOBAL_BASE
from gpulab.errors import FaultError

COPY = """extern "C" __global__ void kernel(const int* a, int* b) {
  b[threadIdx.x] = a[threadIdx.x];
}"""
SIZES = (100, FIRST_BYTES, 1000, 3 * FIRST_BYTES, 5 * FIRST_BYTES + 3, 1, 20 * FIRST_BYTES)


def blank(machine: Machine, address: int, nbytes: int) -> None:
    """Nobody wrote these bytes; they and the zones beside them hold the guard pattern."""
    first, last = address - GLOBAL_BASE, address - GLOBAL_BASE + nbytes
    around = machine.memory.data[first - GUARD_BYTES : last + GUARD_BYTES]
    assert len(around) == nbytes + 2 * GUARD_BYTES
    assert (around == GUARD_BYTE).all()
    assert not machine.memory.valid[first:last].any()


@pytest.mark.parametrize("seen", [False, True], ids=["where it lies", "while an array looks at it"])
def test_growth_keeps_what_was_written_and_shows_nothing_else(seen: bool) -> None:
    machine, kept, views = Machine(), {}, []
    before = machine.alloc(1)
    for k, size in enumerate(SIZES):
        machine.free(before)  # what lies before all others is taken again each time
        assert machine.alloc(1) == before
        address = machine.alloc(size)
        blank(machine, address, size)
        if seen:
            views.append((machine.memory.data, machine.memory.valid_by_width[4]))
        written = np.full(size - size // 3, k + 1, np.uint8)
        machine.write(address, written)
        kept[address] = size, written
    assert machine.memory.size > sum(SIZES)
    for address, (size, written) in kept.items():
        found, first = machine.read(address, size), address - GLOBAL_BASE
        assert np.array_equal(found[: written.size], written)
        assert (found[written.size :] == GUARD_BYTE).all()
        valid = machine.memory.valid[first : first + size]
        assert (valid[: written.size] == 0xFF).all()
        assert not valid[written.size :].any()
    for address, (size, _) in kept.items():
        machine.free(address)
        blank(machine, address, 0)
        assert (machine.read(machine.alloc(size), size) == GUARD_BYTE).all()


def test_an_allocation_partly_where_another_was_is_blank_throughout() -> None:
    machine = Machine()
    for size in SIZES:
        address = machine.alloc(size)
        machine.write(address, bytes(size))
        machine.free(address)
        assert machine.alloc(2 * size) == address
        blank(machine, address, 2 * size)
        machine.free(address)


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("track", [False, True])
def test_a_kernel_that_reads_what_growth_made(poisoned: bool, track: bool) -> None:
    machine = Machine((8, 0), track_uninitialised=track)
    program = machine.load(ptx(COPY, (8, 0)))
    to, source = machine.alloc(128), machine.alloc(4 * FIRST_BYTES)
    if poisoned:
        machine.write(source, bytes(4 * FIRST_BYTES))
        machine.fill(source, 4 * FIRST_BYTES, 0xA5)
    last = source + 4 * FIRST_BYTES - 128
    params = [np.uint64(x).tobytes() for x in (last, to)]
    if track:
        with pytest.raises(FaultError) as caught:
            machine.launch(program, "kernel", (1,), (32,), params)
        assert caught.value.details["fault"] == "uninitialised"
        assert caught.value.details["lanes"] == 32
    else:
        machine.launch(program, "kernel", (1,), (32,), params)
        assert (machine.read(to, 128) == (0xA5 if poisoned else GUARD_BYTE)).all()


class Full(mmap.mmap):
    """Pages of a system that has no more."""

    def resize(self, size: int) -> None:
        raise OSError(errno.ENOMEM, "no more")


def test_memory_that_cannot_grow_stays_as_it_is() -> None:
    machine = Machine()
    address = machine.alloc(64, "kept")
    machine.write(address, b"x" * 64)
    pages = machine.memory._valid
    machine.memory._valid = Full(-1, FIRST_BYTES)
    machine.memory._look(FIRST_BYTES)
    machine.memory.valid[:] = np.frombuffer(pages, np.uint8)
    with pytest.raises(MemoryError):
        machine.alloc(2 * FIRST_BYTES)
    assert machine.read(address, 64).tobytes() == b"x" * 64
    machine.free(machine.alloc(FIRST_BYTES // 2))
    machine.free(address)
    assert not machine.memory.blocks
