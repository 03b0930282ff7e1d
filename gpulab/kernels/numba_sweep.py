"""Going over rows in Numba: packs that wait in shared memory, and what is not kept.

A thread has a ring of places of its own there (no other thread touches them: no barrier). It asks
for its packs in batches, in the order in which it will want them; where a block takes row after
row, for one more batch whenever it has used one for the last time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gpulab.kernels import numba_async
from gpulab.kernels.numba_function import NOTHING, Function, collect, device, repeat
from gpulab.kernels.numba_layout import Layout
from gpulab.kernels.numba_row import Source, Tools
from gpulab.kernels.row_packs import BATCH


class Sweeps:
    """The device functions that go over the rows of a kernel.

    ``here`` says which row it is: its number, the rows before it, the place of its first batch in
    the ring, the number of rows, the packs of each. ``kept`` is the ring in shared memory.
    """

    def __init__(self, kit: Tools, source: Source) -> None:
        self.kit, self.source, self.layout = kit, source, kit.layout
        self._whole = self.layout.fit == "kWhole"
        ring = self.layout.ring // self.layout.batch if self.layout.batches else 0
        # Batches that are asked for at first, and before those of a row are waited for.
        self._at_first, self._asked = ring, ring
        self._where, self._none = _place(self.layout, kit.member), _none()
        self._batch = lru_cache(self._make_batch)

    def begin(self) -> Function:
        """``begin(rows, kept, number of rows, cols)`` gives ``here`` of the first row."""
        from numba import cuda, uint32

        layout, exchange = self.layout, self.kit.exchange
        cluster, vec = np.uint32(layout.cluster), np.uint32(layout.vec)
        come, ready, ask = exchange.begin, exchange.ready, self._ask(0)
        asked = repeat(self._at_first, ask)

        @device
        def begin(rows: Any, kept: Any, count: Any, cols: Any) -> Any:
            come()
            row, packs = uint32(uint32(cuda.blockIdx.x) // cluster), uint32(uint32(cols) // vec)
            here = (row, uint32(0), uint32(0), uint32(count), packs)
            if row < here[3]:
                asked(NOTHING, (rows, here, kept, NOTHING))
            ready()
            return here

        return begin

    def following(self) -> Function:
        """``following(here)``: of the block's next row; at the end, of none."""
        from numba import cuda, uint32

        layout = self.layout
        cluster, batches = np.uint32(layout.cluster), np.uint32(layout.batches)
        ring, turns = np.uint32(layout.ring // layout.batch), layout.turns

        @device
        def following(here: Any) -> Any:
            row, turn, slot, count, packs = here
            if turns:
                row = uint32(row + uint32(cuda.gridDim.x) // cluster)
                slot = uint32(slot + batches)
                slot = min(slot, uint32(slot - ring))  # of both, one is no place
            else:
                row = count
            return (row, uint32(turn + uint32(1)), slot, count, packs)

        return following

    def first(self, take: Function) -> Function:
        """``first(state, rows, here, kept)``: waits for a row, folds ``take`` over it.

        ``take(state, values, pack number, near)`` gives the next state.
        """
        layout = self.layout
        awaited = layout.batches if layout.modern else 0
        waits = [numba_async.wait(self._asked - 1 - i) for i in range(awaited)]
        several = repeat(layout.batches, self._batch(take, None), waits)
        if layout.fit != "kBeyond":

            @device
            def first(state: Any, rows: Any, here: Any, kept: Any) -> Any:
                return several(state, (rows, here, kept, NOTHING))

            return first
        rest = self._rest(take, None)

        @device
        def first_of_all(state: Any, rows: Any, here: Any, kept: Any) -> Any:
            state = several(state, (rows, here, kept, NOTHING))
            return rest(state, rows, here, NOTHING)

        return first_of_all

    def again(self, take: Function, near: Function | None = None, last: bool = False) -> Function:
        """``again(state, rows, here, kept, columns)``: over a row that was read, what was read last
        first. ``near(columns, batch, number in it, pack of the row)`` gives ``take`` its last
        argument. ``last``: the packs are not wanted again.
        """
        layout, batch = self.layout, self._batch(take, near)
        several = repeat(layout.batches, batch)
        if last and layout.turns:
            ask = self._ask(layout.ring // layout.batch)

            @device
            def one(state: Any, what: Any, i: Any) -> Any:
                state = batch(state, what, i)
                ask(NOTHING, what, i)
                return state

            several = repeat(layout.batches, one)
        if layout.fit != "kBeyond":

            @device
            def again(state: Any, rows: Any, here: Any, kept: Any, columns: Any) -> Any:
                return several(state, (rows, here, kept, columns))

            return again
        rest = self._rest(take, near)

        @device
        def all_again(state: Any, rows: Any, here: Any, kept: Any, columns: Any) -> Any:
            state = rest(state, rows, here, columns)
            return several(state, (rows, here, kept, columns))

        return all_again

    def _ask(self, ahead: int) -> Function:
        """``ask(_, (rows, here, kept, _), i)``: the batch ``ahead`` of batch i of this row."""
        from numba import cuda, uint32, uint64

        layout, copy, where = self.layout, self.source.copy, self._where
        batches, cluster = np.uint32(max(1, layout.batches)), np.uint32(layout.cluster)
        step, threads, whole = np.uint32(layout.step), np.uint32(layout.threads), self._whole
        commit = numba_async.commit() if layout.modern else _nothing()
        more = np.uint32(ahead)

        @device
        def one(state: Any, what: Any, j: Any) -> Any:
            rows, kept, place = what
            start, at, to, end = place
            if whole or uint32(at + j * step) < end:
                copy(kept, uint64(to + j * threads), rows, start + j * step)
            return state

        several = repeat(layout.batch, one)

        if not layout.turns:  # a row a block

            @device
            def ask(state: Any, what: Any, i: Any) -> Any:
                rows, here, kept, _ = what
                several(NOTHING, (rows, kept, where(here, i, i)))
                commit()
                return state

            return ask

        @device
        def ask_ahead(state: Any, what: Any, i: Any) -> Any:
            rows, here, kept, _ = what
            row, turn, slot, count, packs = here
            row = uint32(row + (i + more) // batches * (uint32(cuda.gridDim.x) // cluster))
            if row < count:
                place = where((row, turn, slot, count, packs), i, uint32((i + more) % batches))
                several(NOTHING, (rows, kept, place))
            commit()
            return state

        return ask_ahead

    def _make_batch(self, take: Function, near: Function | None) -> Function:
        """``batch(state, (rows, here, kept, columns), i)``: fold over batch i of the row."""
        from numba import uint32, uint64

        layout, recall, values = self.layout, self.source.recall, self.source.values
        where, whole, beside = self._where, self._whole, near or self._none
        step, threads = np.uint32(layout.step), np.uint32(layout.threads)

        @device
        def one(state: Any, what: Any, j: Any) -> Any:
            kept, place, columns, i = what
            start, at, to, end = place
            at = uint32(at + j * step)
            if whole or at < end:
                held = recall(kept, uint64(to + j * threads))
                state = take(state, values(held), start + j * step, beside(columns, i, j, at))
            return state

        several = repeat(layout.batch, one)

        @device
        def batch(state: Any, what: Any, i: Any) -> Any:
            _, here, kept, columns = what
            return several(state, (kept, where(here, i, i), columns, i))

        return batch

    def _rest(self, take: Function, near: Function | None) -> Function:
        """``rest(state, rows, here, columns)``: fold over what is not kept.

        The next packs are on their way while these are taken. Beyond the end the last pack is read
        in their stead: no branch comes between the loads.
        """
        from numba import uint32, uint64

        layout, fetch, values = self.layout, self.source.fetch, self.source.values
        member, beside, batches = self.kit.member, near or self._none, np.uint32(layout.batches)
        some = BATCH // layout.arrays
        step, size = np.uint32(layout.step), np.uint32(layout.step * some)
        first = np.uint32(layout.keep * layout.step)

        @device
        def load(what: Any, j: Any) -> Any:
            rows, start, at, packs = what
            return fetch(
                rows, start + uint64(min(uint32(at + j * step), uint32(packs - uint32(1))))
            )

        @device
        def one(state: Any, what: Any, j: Any) -> Any:
            held, start, at, packs, columns = what
            at = uint32(at + j * step)
            if at < packs:
                near = beside(columns, batches, j, at)
                state = take(state, values(held[j]), start + uint64(at), near)
            return state

        loaded, several = collect(some, load), repeat(some, one)

        @device
        def rest(state: Any, rows: Any, here: Any, columns: Any) -> Any:
            row, _, _, _, packs = here
            start = uint64(row) * uint64(packs)
            at = uint32(member() + first)
            if at < packs:
                held = loaded((rows, start, at, packs))
                while at < packs:
                    coming = loaded((rows, start, uint32(at + size), packs))
                    state = several(state, (held, start, at, packs, columns))
                    at = uint32(at + size)
                    held = coming
            return state

        return rest


def _place(layout: Layout, member: Function) -> Function:
    """``where(here, i, number)``: this thread in batch ``number`` of a row, which lies where the
    i-th batch after the row's first does: its first pack in the array, in the row and in shared
    memory, and the end of what is kept of the row.
    """
    from numba import cuda, uint32, uint64

    ring, size = np.uint32(layout.ring // layout.batch), np.uint32(layout.batch * layout.step)
    places, kept = np.uint32(layout.threads * layout.batch), np.uint32(layout.keep * layout.step)

    @device
    def where(here: Any, i: Any, number: Any) -> Any:
        row, _, slot, _, packs = here
        at = uint64(member()) + number * size
        i = uint32(slot + i)
        i = min(i, uint32(i - ring))
        place = uint32(i * places + uint32(cuda.threadIdx.x))
        return uint64(row) * uint64(packs) + at, uint32(at), place, min(packs, kept)

    return where


@lru_cache(maxsize=1)
def _nothing() -> Function:
    @device
    def nothing() -> None:
        pass

    return nothing


@lru_cache(maxsize=1)
def _none() -> Function:
    from numba import uint32

    @device
    def none(columns: Any, i: Any, j: Any, at: Any) -> Any:
        return uint32(0)

    return none
