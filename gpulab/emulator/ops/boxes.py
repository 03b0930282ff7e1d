"""Tensor copies (TMA): boxes of a matrix between global and shared memory.

When they are made, says ``gpulab.emulator.landings``. What lies outside the matrix is loaded as
zeros, counts at the barrier, and is not stored.

Source: PTX ISA, "cp.async.bulk.tensor", "cp.async.bulk.commit_group / wait_group".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.clusters import RANK_SHIFT
from gpulab.emulator.faults import fault, place_of
from gpulab.emulator.landings import Landing, landings_of, stores_of
from gpulab.emulator.observe import Boxes
from gpulab.emulator.ops.memory import address_of, offsets
from gpulab.emulator.ops.registry import Env, Op, effect, literal, spelled, stop
from gpulab.emulator.ptx.nodes import Imm, Instr, Mem, Operand
from gpulab.emulator.spaces import GLOBAL_BASE
from gpulab.emulator.tensormap import BYTES, TensorMap, swizzle_bits
from gpulab.emulator.values import U32, Array, Mask
from gpulab.errors import UsageError

Ints = NDArray[np.int64]

_LOAD = (
    r"cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global(\.tile)?"
    r"\.mbarrier::complete_tx::bytes(\.multicast::cluster)?"
)
_STORE = r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta(\.tile)?\.bulk_group"
_BOX_ALIGNMENT = 128


def bulk(instr: Instr, env: Env) -> Op:
    """An instruction of the ``cp.async.bulk`` family.

    Raises:
        BuildError: not a tensor copy of two dimensions, or a wait.
    """
    words = instr.modifiers
    if words[2] in ("commit_group", "wait_group"):
        return _grouped(instr)
    is_load = words[-1] != "bulk_group"
    spelled(instr, _LOAD if is_load else _STORE)
    given = list(instr.operands)
    box, tensor = (given.pop(0), given.pop(0)) if is_load else (given.pop(1), given.pop(0))
    if not isinstance(tensor, Mem) or len(tensor.place) != 2:
        stop(instr, "two coordinates are needed")
    where, where_kind, where_offset = address_of(instr, box, env)
    base, base_kind, base_offset = address_of(instr, tensor, env)
    sources: list[Operand] = [where, base, *tensor.place]
    kinds = [where_kind, base_kind, "u32", "u32"]
    barrier_offset = 0
    if is_load:
        barrier, barrier_kind, barrier_offset = address_of(instr, given.pop(0), env)
        many: Operand = given.pop(0) if "multicast::cluster" in words else Imm(0)
        sources += [barrier, many]
        kinds += [barrier_kind, "u16"]
    if given:
        stop(instr, "operands")

    def function(
        state: Any, _instr: Instr, mask: Mask | None,
        at: Array, start: Array, x: Array, y: Array, *more: Array,
    ) -> None:  # fmt: skip
        place = offsets(at, where_offset, 0)
        origin = offsets(start, base_offset, GLOBAL_BASE)
        values = [place, origin, x.view(np.int32), y.view(np.int32)]
        if more:
            values += [offsets(more[0], barrier_offset, 0), more[1]]
        for lanes in _alike(state, mask, values):
            if is_load:
                _load(state, instr, lanes)
            else:
                _store(state, instr, lanes)

    return Op(function, tuple(kinds), (), tuple(sources), (), context=True)


def _grouped(instr: Instr) -> Op:
    spelled(instr, r"cp\.async\.bulk\.(commit_group|wait_group(\.read)?)")
    if instr.modifiers[2] == "commit_group":
        return effect(instr, lambda state, _i, mask: stores_of(state).commit(mask), (), ())
    count = literal(instr)
    return effect(instr, lambda state, _i, mask: stores_of(state).wait(mask, count), (), ())


@dataclass
class Lanes:
    """Lanes that copy to or from one place in shared memory by one map: one box each.

    Args:
        place: shared address.
        map_at: offset of the map in global memory.
        x, y: first element of each box.
        threads, columns: who.
        barrier: shared address of the mbarrier (loads).
        ranks: of the blocks of the cluster that get the box; empty: the own one.
    """

    place: int
    map_at: int
    x: Ints
    y: Ints
    threads: Ints
    columns: Ints
    barrier: int = 0
    ranks: tuple[int, ...] = ()


def _alike(state: Any, mask: Mask | None, values: list[Array]) -> Iterator[Lanes]:
    chosen = np.broadcast_to(True if mask is None else mask, state.shape)
    if state.live is not None:
        chosen = chosen & state.live
    columns, threads = np.nonzero(chosen.T)
    picked = [np.broadcast_to(v, state.shape)[threads, columns].astype(np.int64) for v in values]
    keys = np.stack([*picked[:2], *picked[4:]])
    for key in np.unique(keys, axis=1).T:
        same = (keys == key[:, None]).all(axis=0)
        place, map_at, *more = (int(k) for k in key)
        barrier, many = more or (0, 0)
        yield Lanes(
            place, map_at, picked[2][same], picked[3][same], threads[same], columns[same],
            barrier, tuple(r for r in range(16) if many >> r & 1),
        )  # fmt: skip


def _wrong(state: Any, instr: Instr, lanes: Lanes, kind: str, text: str, **details: Any) -> Any:
    return fault(
        kind,
        text,
        instr,
        thread=state.thread_xyz(int(lanes.threads[0])),
        block=state.block_xyz(int(lanes.columns[0])),
        **details,
    )


def _map(state: Any, instr: Instr, lanes: Lanes) -> TensorMap:
    raw = state.memory.data[lanes.map_at : lanes.map_at + BYTES].tobytes()
    found = TensorMap.decode(raw) if len(raw) == BYTES else None
    if found is None:
        raise _wrong(
            state, instr, lanes, "tensor_map", f"{instr.opcode} by an address that is no tensor map"
        )
    try:
        state.memory.inside(found.address, found.rows * found.columns * found.itemsize)
    except UsageError as error:
        raise _wrong(
            state, instr, lanes, "out_of_bounds", f"tensor map: {error.message}", space="global"
        ) from None
    return found


def _cells(state: Any, instr: Instr, lanes: Lanes, tensor: TensorMap, write: bool) -> Ints:
    """Words of shared memory that a box takes, in the order of its bytes."""
    low = lanes.place & ((1 << RANK_SHIFT) - 1)
    size = state.shared.size
    if low < 0 or low + tensor.nbytes > size or low % _BOX_ALIGNMENT:
        kind = "misaligned" if low % _BOX_ALIGNMENT else "out_of_bounds"
        verb = "store to" if write else "load from"
        raise _wrong(
            state, instr, lanes, kind,
            f"{kind.replace('_', '-')} {verb} shared memory of a box of {tensor.nbytes} bytes at "
            f"offset {low} (the block has {size} bytes, boxes begin on {_BOX_ALIGNMENT})",
            space="shared", offset=low, nbytes=tensor.nbytes,
        )  # fmt: skip
    at = low + 4 * np.arange(tensor.nbytes // 4, dtype=np.int64)
    return (at ^ ((at >> 3) & swizzle_bits(tensor.swizzle))) >> 2


def _elements(lanes: Lanes, tensor: TensorMap) -> tuple[Ints, NDArray[np.bool_]]:
    """Index in units of an element of global memory, and whether inside: (C, rows, columns)."""
    y = lanes.y[:, None, None] + np.arange(tensor.box_rows)[None, :, None]
    x = lanes.x[:, None, None] + np.arange(tensor.box_columns)[None, None, :]
    inside = (y >= 0) & (y < tensor.rows) & (x >= 0) & (x < tensor.columns)
    first = (tensor.address - GLOBAL_BASE) // tensor.itemsize
    return np.where(inside, first + y * tensor.columns + x, first), inside


def _tell(state: Any, instr: Instr, kind: Any, tensor: TensorMap, index: Ints, inside: Any) -> None:
    """Observers hear of the rows of boxes that lie in the matrix."""
    if not state.observers:
        return
    size, some = tensor.itemsize, inside.any(axis=2)
    first = np.where(inside, index, np.iinfo(np.int64).max).min(axis=2)[some] * size
    told = Boxes(
        kind, len(index), first + GLOBAL_BASE, inside.sum(axis=2)[some] * size,
        place_of(instr.location),
    )  # fmt: skip
    for observer in state.observers:
        observer.boxes(told)


def _load(state: Any, instr: Instr, lanes: Lanes) -> None:
    tensor = _map(state, instr, lanes)
    rows = _cells(state, instr, lanes, tensor, True)
    index, inside = _elements(lanes, tensor)
    memory = state.memory
    good = memory.valid_by_width[tensor.itemsize].take(index) == (1 << 8 * tensor.itemsize) - 1
    if memory.track and not (good | ~inside).all():
        block = memory.find(tensor.address - GLOBAL_BASE)
        raise _wrong(
            state, instr, lanes, "uninitialised",
            f"uninitialised load from global memory: a box of {block.name} that nobody wrote",
            space="global", allocation=block.name,
        )  # fmt: skip
    _tell(state, instr, "load", tensor, index, inside)
    found = np.where(inside, memory.by_width[tensor.itemsize].take(index), 0)
    codes = np.ascontiguousarray(found.astype(f"u{tensor.itemsize}")).reshape(len(index), -1)
    words = np.ascontiguousarray(codes.view(U32).T)
    barrier = lanes.barrier & ((1 << RANK_SHIFT) - 1)
    first = lanes.columns // state.cluster * state.cluster
    own = (lanes.place >> RANK_SHIFT) - 1
    targets = [first + r for r in lanes.ranks]
    if not targets:
        targets = [lanes.columns if own < 0 else first + own]
    for columns in targets:
        if (columns >= first + state.cluster).any():
            raise _wrong(
                state, instr, lanes, "out_of_bounds",
                f"a box for a block outside a cluster of {state.cluster}", space="shared",
            )  # fmt: skip
        if state.products is not None and state.products.reads(rows, columns):
            raise _wrong(
                state, instr, lanes, "async_in_flight",
                "a box over the operands of a product that was not waited for (wgmma.wait_group)",
                space="shared", offset=lanes.place,
            )  # fmt: skip
        landing = Landing(rows, columns, words, tensor.nbytes)
        landings_of(state).add(state, barrier, landing)


def _store(state: Any, instr: Instr, lanes: Lanes) -> None:
    tensor = _map(state, instr, lanes)
    rows = _cells(state, instr, lanes, tensor, False)
    shared, memory = state.shared, state.memory
    if shared.track:
        valid = shared.row_valid.view(U32)[rows][:, None] == 0xFFFFFFFF
        if shared.cell_valid is not None:
            valid = valid | (shared.cell_valid[rows[:, None], lanes.columns[None]] == 0xFFFFFFFF)
        if not valid.all():
            raise _wrong(
                state, instr, lanes, "uninitialised",
                "uninitialised load from shared memory: a box that is stored was not written whole",
                space="shared", offset=lanes.place,
            )  # fmt: skip
    index, inside = _elements(lanes, tensor)
    _tell(state, instr, "store", tensor, index, inside)
    left = np.arange(len(index))

    def carry(chosen: NDArray[np.bool_]) -> None:
        nonlocal left
        now, left = left[chosen], left[~chosen]
        words = np.ascontiguousarray(shared.data[rows[:, None], lanes.columns[now][None]].T)
        codes = words.view(f"u{tensor.itemsize}").reshape(len(now), *index.shape[1:])
        to = index[now][inside[now]]
        memory.by_width[tensor.itemsize][to] = codes[inside[now]]
        memory.valid_by_width[tensor.itemsize][to] = (1 << 8 * tensor.itemsize) - 1

    stores_of(state).add(lanes.threads, lanes.columns, carry)
