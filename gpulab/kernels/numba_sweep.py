"""Going over a row in Numba: packs that stay in shared memory, and the rest from global memory."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from gpulab.kernels import numba_async
from gpulab.kernels.numba_row import IN_FLIGHT, Function, Source, Tools


def first(kit: Tools, source: Source, take: Function) -> Function:
    """``first(state, rows, start, packs, kept)``: read a row, keep its first packs, fold ``take``.

    All packs that are kept are on their way before the first of them is waited for.
    ``take(state, values, place)`` gives the next state.
    """
    from numba import uint64

    ask, batches = _ask(kit, source), kit.layout.batches
    rest, batch = _rest(kit, source, take), _batch(kit, source, take)

    def from_batch(number: int) -> Function:
        """This batch and those after it, which may be missing while it is not their turn."""
        if number == batches:

            @kit.inline
            def none(state: Any, packs: Any, kept: Any) -> Any:
                return state

            return cast(Function, none)
        wait, others = _wait(kit, batches - 1 - number), from_batch(number + 1)
        here = np.uint64(number)

        @kit.inline
        def some(state: Any, packs: Any, kept: Any) -> Any:
            wait()
            return others(batch(state, packs, kept, here), packs, kept)

        return cast(Function, some)

    waiting = from_batch(0)

    @kit.inline
    def whole(state: Any, rows: Any, start: Any, packs: Any, kept: Any) -> Any:
        for i in range(batches):
            ask(rows, start, packs, kept, uint64(i))
        return rest(waiting(state, packs, kept), rows, start, packs)

    return cast(Function, whole)


def again(kit: Tools, source: Source, take: Function) -> Function:
    """``again(state, rows, start, packs, kept)``: go over a row that was read, fold ``take``.

    What was read last is read first, while it is still near.
    """
    from numba import uint64

    rest, batch, batches = _rest(kit, source, take), _batch(kit, source, take), kit.layout.batches

    @kit.inline
    def whole(state: Any, rows: Any, start: Any, packs: Any, kept: Any) -> Any:
        state = rest(state, rows, start, packs)
        for i in range(batches):
            state = batch(state, packs, kept, uint64(i))
        return state

    return cast(Function, whole)


def _ask(kit: Tools, source: Source) -> Function:
    """``ask(rows, start, packs, kept, i)``: batch i of a row on its way to its places."""
    from numba import cuda, uint64

    copy = source.copy
    commit = numba_async.commit() if kit.layout.modern else _nothing(kit)
    step, keep = np.uint64(kit.layout.threads), np.uint64(kit.layout.keep)
    some = np.uint64(kit.layout.threads * IN_FLIGHT)

    @kit.inline
    def ask(rows: Any, start: Any, packs: Any, kept: Any, i: Any) -> None:
        at = uint64(cuda.threadIdx.x) + i * some
        end = min(packs, step * keep)
        for _ in range(IN_FLIGHT):
            if at < end:
                copy(kept, at, rows, start + at)
            at += step
        commit()

    return cast(Function, ask)


def _wait(kit: Tools, pending: int) -> Function:
    """Until at most ``pending`` batches are on their way; what is copied at once is there."""
    return numba_async.wait(pending) if kit.layout.modern else _nothing(kit)


def _nothing(kit: Tools) -> Function:
    @kit.inline
    def nothing() -> None:
        pass

    return cast(Function, nothing)


def _batch(kit: Tools, source: Source, take: Function) -> Function:
    """``batch(state, packs, kept, i)``: fold over batch i, which has come."""
    from numba import cuda, uint64

    recall, values = source.recall, source.values
    step, keep = np.uint64(kit.layout.threads), np.uint64(kit.layout.keep)
    some = np.uint64(kit.layout.threads * IN_FLIGHT)

    @kit.inline
    def batch(state: Any, packs: Any, kept: Any, i: Any) -> Any:
        at = uint64(cuda.threadIdx.x) + i * some
        end = min(packs, step * keep)
        for _ in range(IN_FLIGHT):
            if at < end:
                state = take(state, values(recall(kept, at)), at)
            at += step
        return state

    return cast(Function, batch)


def _rest(kit: Tools, source: Source, take: Function) -> Function:
    """``rest(state, rows, start, packs)``: fold over what is not kept.

    The next packs are on their way while these are taken. Beyond the end the last pack is read in
    their stead: no branch comes between the loads.
    """
    if not kit.layout.rest:

        @kit.inline
        def none(state: Any, rows: Any, start: Any, packs: Any) -> Any:
            return state

        return cast(Function, none)
    from numba import cuda, uint64

    fetch, values = source.fetch, source.values
    step, keep = np.uint64(kit.layout.threads), np.uint64(kit.layout.keep)
    two, three = np.uint64(2 * kit.layout.threads), np.uint64(3 * kit.layout.threads)
    some = np.uint64(kit.layout.threads * IN_FLIGHT)

    @kit.inline
    def load(rows: Any, at: Any, last: Any) -> Any:
        return (
            fetch(rows, min(at, last)),
            fetch(rows, min(at + step, last)),
            fetch(rows, min(at + two, last)),
            fetch(rows, min(at + three, last)),
        )

    @kit.inline
    def rest(state: Any, rows: Any, start: Any, packs: Any) -> Any:
        at = uint64(cuda.threadIdx.x) + step * keep
        last = start + packs - uint64(1)
        if at < packs:
            held = load(rows, start + at, last)
            while at < packs:
                coming = load(rows, start + at + some, last)
                for i in range(IN_FLIGHT):
                    if at < packs:
                        state = take(state, values(held[i]), at)
                    at += step
                held = coming
        return state

    return cast(Function, rest)
