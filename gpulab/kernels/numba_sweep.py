"""Going over a row in Numba: packs that stay in shared memory, and the rest from global memory."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from gpulab.kernels import numba_async
from gpulab.kernels.numba_layout import IN_FLIGHT
from gpulab.kernels.numba_row import Function, Source, Tools


def first(kit: Tools, source: Source, take: Function) -> Function:
    """``first(state, rows, start, packs, kept)``: read a row, keep its first packs, fold ``take``.

    All packs that are kept are on their way before the first of them is waited for.
    ``take(state, values, place)`` gives the next state.
    """
    from numba import uint64

    ask, batches = _ask(kit, source), kit.layout.batches
    near, taken = _alone(kit, take)
    rest, batch = _rest(kit, source, taken, near), _batch(kit, source, taken, near, IN_FLIGHT)

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

    waiting, ready = from_batch(0), kit.ready

    @kit.inline
    def whole(state: Any, rows: Any, start: Any, packs: Any, kept: Any) -> Any:
        for i in range(batches):
            ask(rows, start, packs, kept, uint64(i))
        state = rest(waiting(state, packs, kept), rows, start, packs)
        ready()
        return state

    return cast(Function, whole)


def again(kit: Tools, source: Source, take: Function) -> Function:
    """``again(state, rows, start, packs, kept)``: go over a row that was read, fold ``take``.

    What was read last is read first, while it is still near.
    """
    near, taken = _alone(kit, take)
    return _again(kit, source, taken, near, IN_FLIGHT)


def beside(kit: Tools, source: Source, take: Function, near: Function, arrays: int) -> Function:
    """``again``, with packs of ``arrays`` parameters of the columns, which come from L2.

    Four of them are on their way at once: ``near(state, place)`` asks for a place's, and
    ``take(state, values, place, near)`` gets them.
    """
    return _again(kit, source, take, near, IN_FLIGHT // arrays)


def _alone(kit: Tools, take: Function) -> tuple[Function, Function]:
    """``near`` and ``take`` where there are no parameters."""

    @kit.inline
    def near(state: Any, at: Any) -> Any:
        return at

    @kit.inline
    def taken(state: Any, values: Any, at: Any, near: Any) -> Any:
        return take(state, values, at)

    return near, taken


def _again(kit: Tools, source: Source, take: Function, near: Function, ahead: int) -> Function:
    from numba import uint64

    rest, batches = _rest(kit, source, take, near), kit.layout.batches
    batch = _batch(kit, source, take, near, ahead)

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

    copy, member = source.copy, kit.member
    commit = numba_async.commit() if kit.layout.modern else _nothing(kit)
    step, end_of_kept = np.uint64(kit.layout.step), np.uint64(kit.layout.step * kit.layout.keep)
    threads = np.uint64(kit.layout.threads)

    @kit.inline
    def ask(rows: Any, start: Any, packs: Any, kept: Any, i: Any) -> None:
        batch = i * uint64(IN_FLIGHT)
        at, place = member() + batch * step, uint64(cuda.threadIdx.x) + batch * threads
        end = min(packs, end_of_kept)
        for _ in range(IN_FLIGHT):
            if at < end:
                copy(kept, place, rows, start + at)
            at += step
            place += threads
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


def _several(kit: Tools, get: Function, count: int) -> Function:
    """``several(what, at, last)``: a tuple of ``get(what, at)`` and of the next packs of a thread.

    Beyond the end the last pack is read in their stead: no branch comes between the loads.
    """
    if count == 1:

        @kit.inline
        def one(what: Any, at: Any, last: Any) -> Any:
            return (get(what, min(at, last)),)

        return cast(Function, one)
    others, step = _several(kit, get, count - 1), np.uint64(kit.layout.step)

    @kit.inline
    def some(what: Any, at: Any, last: Any) -> Any:
        return (get(what, min(at, last)), *others(what, at + step, last))

    return cast(Function, some)


def _each(kit: Tools, one: Function, count: int, number: int = 0) -> Function:
    """``each(state, within, at, place, held)``: ``one`` of a thread's next packs, in order."""
    if number == count:

        @kit.inline
        def none(state: Any, within: Any, at: Any, place: Any, held: Any) -> Any:
            return state

        return cast(Function, none)
    others = _each(kit, one, count, number + 1)
    step, threads = np.uint64(kit.layout.step), np.uint64(kit.layout.threads)

    @kit.inline
    def some(state: Any, within: Any, at: Any, place: Any, held: Any) -> Any:
        state = one(state, within, at, place, held[number])
        return others(state, within, at + step, place + threads, held)

    return cast(Function, some)


def _batch(kit: Tools, source: Source, take: Function, near: Function, ahead: int) -> Function:
    """``batch(state, packs, kept, i)``: fold over batch i, which has come.

    Args:
        kit: device functions.
        source: what is read.
        take: folds a pack.
        near: asks for what else it needs.
        ahead: packs for which that is on its way at once.
    """
    from numba import cuda, uint64

    recall, values, member, whole = source.recall, source.values, kit.member, kit.layout.whole
    step, end_of_kept = np.uint64(kit.layout.step), np.uint64(kit.layout.step * kit.layout.keep)
    threads = np.uint64(kit.layout.threads)

    @kit.inline
    def one(state: Any, within: Any, at: Any, place: Any, near: Any) -> Any:
        end, kept = within
        if whole or at < end:
            state = take(state, values(recall(kept, place)), at, near)
        return state

    asked, each = _several(kit, near, ahead), _each(kit, one, ahead)

    @kit.inline
    def batch(state: Any, packs: Any, kept: Any, i: Any) -> Any:
        before = i * uint64(IN_FLIGHT)
        at, place = member() + before * step, uint64(cuda.threadIdx.x) + before * threads
        within, last = (min(packs, end_of_kept), kept), packs - uint64(1)
        for _ in range(IN_FLIGHT // ahead):
            state = each(state, within, at, place, asked(state, at, last))
            at += step * uint64(ahead)
            place += threads * uint64(ahead)
        return state

    return cast(Function, batch)


def _rest(kit: Tools, source: Source, take: Function, near: Function) -> Function:
    """``rest(state, rows, start, packs)``: fold over what is not kept.

    The next packs are on their way while these are taken.
    """
    if not kit.layout.rest:

        @kit.inline
        def none(state: Any, rows: Any, start: Any, packs: Any) -> Any:
            return state

        return cast(Function, none)
    from numba import uint64

    values, member, count = source.values, kit.member, IN_FLIGHT // kit.layout.arrays
    step = kit.layout.step
    end_of_kept, some = np.uint64(step * kit.layout.keep), np.uint64(step * count)

    @kit.inline
    def one(state: Any, packs: Any, at: Any, place: Any, held: Any) -> Any:
        if at < packs:
            state = take(state, values(held), at, near(state, at))
        return state

    load, each = _several(kit, source.fetch, count), _each(kit, one, count)

    @kit.inline
    def rest(state: Any, rows: Any, start: Any, packs: Any) -> Any:
        at = member() + end_of_kept
        last = start + packs - uint64(1)
        if at < packs:
            held = load(rows, start + at, last)
            while at < packs:
                coming = load(rows, start + at + some, last)
                state = each(state, packs, at, at, held)
                at += some
                held = coming
        return state

    return cast(Function, rest)
