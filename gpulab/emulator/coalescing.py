"""What one warp's memory instruction costs the memory system: sectors and wavefronts.

Pure functions over rows of 32 lane addresses. The rules:

* **Global.** One instruction of a warp is one request however wide its lanes are. It touches the
  aligned 32-byte sectors that hold at least one byte of an active lane; each counts once.
* **Shared.** 32 banks of 4 bytes; the bank of a word is its index modulo 32. The lanes are taken
  in groups that move at most 32 words: the whole warp up to 4 bytes a lane, half-warps at 8,
  quarter-warps at 16. A group needs as many wavefronts as the busiest bank has *different* words
  (the same word costs once, for loads and for stores). Its conflicts are its wavefronts less one.
* **Merged loads.** A load of 8 or 16 bytes a lane whose every active lane i reads the same address
  as lane i xor 1 (or every one as i xor 2), with no bank asked for two words by the whole warp,
  takes 1 (8 bytes) or 2 (16 bytes) wavefronts instead of 2 or 4. Stores never merge.
* **Asynchronous copies** to shared memory group their lanes alike, but every lane's word counts,
  even the same word twice. A quarter-warp's copies of 16 bytes read in the order of where they
  write. A sector read serves two of them; but a copy whose neighbour in the 32 bytes it writes to
  copies nothing (it writes elsewhere, or zeros) reads its sector by itself, and a later one may
  still share that.
* **ldmatrix.** Each group of eight row addresses is one 8x16-byte matrix: a quarter-warp.

Source: CUDA C++ Programming Guide, "Shared Memory" and "Device Memory Accesses"; NVIDIA developer
forum 77228 (merged loads); bank grouping of vector accesses as published measurements with
``l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld/st`` show it; asynchronous copies as the probes
of scripts/counter_probes.cu show them (docs/results/counters_vs_ncu.jsonl).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.observe import WARP, Access, Lanes

SECTOR = 32
BANKS = 32
WORD = 4
_SMALL = 1024
"""Lanes up to which a pattern is remembered: all warps of the largest block."""
_MOST_KNOWN = 2048
_KNOWN: dict[tuple[bytes, int, bool, bool], tuple[int, int]] = {}
_FAR = np.iinfo(np.int64).max

Rows = NDArray[np.int64]
Active = NDArray[np.bool_] | None


def columns_of(access: Access) -> int:
    """1 where addresses and mask are alike in all blocks (shape (T, 1)), else the block count."""
    mask = None if access.lanes.everyone else access.lanes.mask
    wide: int = np.atleast_2d(access.address).shape[1]
    return max(wide, 1 if mask is None else np.atleast_2d(mask).shape[1])


def warp_rows(access: Access, columns: int | None = None) -> tuple[Rows, Active, int]:
    """The access as rows of one warp each.

    Blocks that do not differ are worked out once.

    Args:
        access: the access.
        columns: at least ``columns_of``; that by default.

    Returns:
        addresses int64[R, 32]; active bool[R, 32] (None = all); how many warps a row stands for.
    """
    lanes = access.lanes
    address, mask = np.atleast_2d(access.address), lanes.mask
    mask = None if mask is None or lanes.everyone else np.atleast_2d(mask)
    columns = columns or columns_of(access)
    rows = _to_rows(address, lanes, columns)
    if mask is None and lanes.threads % WARP == 0:
        return rows, None, len(lanes.blocks) // columns
    live = np.ones((1, 1), np.bool_) if mask is None else mask
    return rows, _to_rows(live, lanes, columns), len(lanes.blocks) // columns


def _to_rows(grid: NDArray[Any], lanes: Lanes, columns: int) -> NDArray[Any]:
    """(T, C)-broadcastable grid -> [W * C, 32], lanes past the block's end zero (False)."""
    threads = lanes.threads
    full = np.broadcast_to(grid, (threads, columns))
    warps = -(-threads // WARP)
    if threads % WARP:
        padded = np.zeros((warps * WARP, columns), grid.dtype)
        padded[:threads] = full
        full = padded
    rows: NDArray[Any] = full.reshape(warps, WARP, columns).transpose(0, 2, 1).reshape(-1, WARP)
    return rows


def sectors(rows: Rows, active: Active) -> int:
    """Different 32-byte sectors of each row, summed over the rows.

    A lane's bytes lie in one sector, as accesses are at most 16 bytes and aligned to their size.
    """
    sector = rows >> 5
    if active is None:
        step = np.diff(sector, axis=1)
        if (step < 0).any():
            step = np.diff(np.sort(sector, axis=1), axis=1)
        return len(rows) + int(np.count_nonzero(step))
    sector = np.sort(np.where(active, sector, _FAR), axis=1)
    changes = (np.diff(sector, axis=1) != 0) & (sector[:, 1:] != _FAR)
    return int(np.count_nonzero(changes)) + int(np.count_nonzero(sector[:, 0] != _FAR))


def copied_sectors(rows: Rows, active: Active, written: Rows, nbytes: int) -> int:
    """Sectors that an asynchronous copy reads, summed over the rows.

    Args:
        rows: addresses read, [W, 32].
        active: lanes that read.
        written: addresses in shared memory that the lanes write.
        nbytes: that a lane writes.
    """
    if nbytes != 16:
        return sectors(rows, active)
    quarters = (-1, WARP // 4)
    live = np.ones(rows.shape, np.bool_) if active is None else active
    live, sector = live.reshape(quarters), (rows >> 5).reshape(quarters)
    far = _FAR - 2 * np.arange(WARP // 4)  # no two of them neighbours
    chunk = np.where(live, (written >> 4).reshape(quarters), far)
    order = np.argsort(chunk, axis=1)
    sector = np.take_along_axis(sector, order, axis=1)
    chunk = np.take_along_axis(chunk, order, axis=1)
    live = np.take_along_axis(live, order, axis=1)
    whole = (chunk[:, :, None] ^ 1 == chunk[:, None, :]).any(axis=2)
    room = np.zeros(live.shape, np.bool_)  # a copy that read and shares with nobody yet
    count = 0
    for lane in range(WARP // 4):
        same = sector[:, :lane] == sector[:, lane, None]
        shares = whole[:, lane] & (same & room[:, :lane]).any(axis=1)
        room[:, :lane] &= ~(same & live[:, lane, None])
        room[:, lane] = live[:, lane] & ~shares
        count += int(np.count_nonzero(room[:, lane]))
    return count


def _groups(rows: Rows, active: Active, words: int) -> tuple[Rows, NDArray[np.bool_]]:
    """Words each group of lanes touches: int64[R * words, 32] and which of them count."""
    word = (rows >> 2)[:, :, None] + np.arange(words)
    live = np.ones((1, 1), np.bool_) if active is None else active
    live = np.broadcast_to(live[:, :, None], word.shape)
    return word.reshape(-1, BANKS), live.reshape(-1, BANKS)


def _passes(word: Rows, live: NDArray[np.bool_], *, coalesce: bool) -> NDArray[np.int64]:
    """Wavefronts of each row: words (any number of them) the busiest bank has to give."""
    if coalesce:
        word = np.sort(np.where(live, word, _FAR), axis=1)
        live = word != _FAR
        live[:, 1:] &= word[:, 1:] != word[:, :-1]
    row = np.arange(len(word))[:, None] * BANKS
    counts = np.bincount((row + (word & (BANKS - 1)))[live], minlength=len(word) * BANKS)
    most: NDArray[np.int64] = counts.reshape(-1, BANKS).max(axis=1)
    return most


def _merged(rows: Rows, active: Active, words: int) -> NDArray[np.bool_]:
    """Rows whose vector load takes half the wavefronts (see the module text)."""
    lane = np.arange(WARP)
    live = np.ones(rows.shape, np.bool_) if active is None else active
    shared = np.zeros(len(rows), np.bool_)
    for distance in (1, 2):
        other = lane ^ distance
        apart = (rows != rows[:, other]) & live & live[:, other]
        shared |= ~apart.any(axis=1)
    shared &= live.any(axis=1)
    if shared.any():
        word = ((rows[shared] >> 2)[:, :, None] + np.arange(words)).reshape(-1, WARP * words)
        whole = np.repeat(live[shared], words, axis=1)
        shared[shared] = _passes(word, whole, coalesce=True) <= 1
    return shared


def wavefronts(
    rows: Rows, active: Active, nbytes: int, *, load: bool, coalesce: bool = True
) -> tuple[int, int]:
    """Wavefronts and bank conflicts of a shared-memory access.

    Args:
        rows: int64[R, 32], byte offsets in the window.
        active: bool[R, 32] or None.
        nbytes: bytes a lane moves (1 to 16).
        load: loads may merge.
        coalesce: whether the same word costs once (not for asynchronous copies).

    Returns:
        (wavefronts, conflicts), summed over the rows.
    """
    if active is not None or rows.size > _SMALL:
        return _wavefronts(rows, active, nbytes, load, coalesce)
    # Banks turn with the address, so that a pattern costs the same wherever it starts. An unrolled
    # loop repeats one pattern many times.
    pattern = rows - (int(rows.min()) & -WORD)
    key = (pattern.tobytes(), nbytes, load, coalesce)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = _wavefronts(pattern, None, nbytes, load, coalesce)
    return found


def _wavefronts(
    rows: Rows, active: Active, nbytes: int, load: bool, coalesce: bool
) -> tuple[int, int]:
    words = max(1, nbytes // WORD)
    passes = _passes(*_groups(rows, active, words), coalesce=coalesce)
    conflicts = passes - (passes > 0)
    if load and words > 1:
        merged = _merged(rows, active, words)
        per_row = np.where(merged, words // 2, passes.reshape(-1, words).sum(axis=1))
        return int(per_row.sum()), int(conflicts.sum())
    return int(passes.sum()), int(conflicts.sum())
