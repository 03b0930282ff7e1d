"""mbarrier: barriers kept in shared memory.

The object is 64 opaque bits; here: 20 bits arrivals still to come, 20 bits expected arrivals of a
phase, 23 bits transaction bytes still to come (biased), one bit phase parity.

Source: PTX ISA, section "mbarrier". A copy by ``cp.async`` is complete when it is issued, as far
as ``cp.async.mbarrier.arrive`` is concerned: it lands the lane's copies and arrives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.emulator import clusters
from gpulab.emulator.faults import fault
from gpulab.emulator.ops.copies import copies_of
from gpulab.emulator.ops.memory import ORDER_WORDS, address_of, offsets
from gpulab.emulator.ops.registry import Env, Op, family, only, result_registers
from gpulab.emulator.ptx.nodes import Instr, Mem
from gpulab.emulator.values import Array, Mask

_MASK20 = (1 << 20) - 1
_TX_BIAS = 1 << 22
_TX_MASK = (1 << 23) - 1


def pack(pending: int, expected: int, tx: int, phase: int) -> int:
    """The object as an integer."""
    return pending | (expected << 20) | ((tx + _TX_BIAS) << 40) | (phase << 63)


def unpack(word: int) -> tuple[int, int, int, int]:
    """(pending, expected, tx, phase)."""
    return (
        word & _MASK20,
        (word >> 20) & _MASK20,
        ((word >> 40) & _TX_MASK) - _TX_BIAS,
        word >> 63,
    )


@family("mbarrier")
def _mbarrier(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    only(
        instr, words, "init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx",
        "test_wait", "try_wait", "pending_count", "parity", "noComplete", "shared", "shared::cta",
        "shared::cluster", "b64", *ORDER_WORDS,
    )  # fmt: skip
    form = words[0]
    if form == "pending_count":
        (result,) = result_registers(instr, instr.operands[0])
        return Op(
            lambda a: (a & np.uint64(_MASK20)).astype(np.uint32),
            ("u64",), ("u32",), instr.operands[1:], (result,),
        )  # fmt: skip
    operands = list(instr.operands)
    results: Any = ()
    if not isinstance(operands[0], Mem):
        results = result_registers(instr, operands.pop(0))
    base, kind, offset = address_of(instr, operands.pop(0), env)
    if form in ("test_wait", "try_wait"):
        token_kind = "u32" if "parity" in words else "u64"
        operands = operands[:1]  # a time limit is a hint

        def waited(state: Any, _instr: Instr, mask: Mask | None, at: Array, token: Array) -> Array:
            address = offsets(at, offset, 0)
            if state.boxes is not None:
                state.boxes.land(state, address, mask)
            (word,) = state.shared.load(state, instr, mask, address, 8, 1)
            phase = word >> np.uint64(63)
            if "parity" in words:
                token_phase = (token & np.uint32(1)).astype(np.uint64)
            else:
                token_phase = token >> np.uint64(63)
            other: Array = phase != token_phase
            state.waits = not (other if mask is None else other | ~mask).all()
            return other

        return Op(waited, (kind, token_kind), ("p",), (base, *operands), results, context=True)
    reads = tuple("u32" for _ in operands)

    def function(state: Any, _instr: Instr, mask: Mask | None, at: Array, *extra: Array) -> Any:
        address, columns = offsets(at, offset, 0), None
        if "shared::cluster" in words:
            address, columns = clusters.decoded(state, instr, mask, address)
        if form == "init":
            count = extra[0].astype(np.uint64)
            word = count | (count << np.uint64(20)) | np.uint64(_TX_BIAS << 40)
            state.shared.store(state, instr, mask, address, 8, [word])
            return None
        if form == "inval":
            state.shared.place(state, instr, mask, address, 8, True)
            return None
        token = _update(state, instr, form, mask, address, extra, "expect_tx" in words, columns)
        return token if results else None

    writes = ("u64",) if results else ()
    return Op(function, (kind, *reads), writes, (base, *operands), results, context=True)


def _update(
    state: Any,
    instr: Instr,
    form: str,
    mask: Mask | None,
    address: Array,
    extra: tuple[Array, ...],
    with_bytes: bool,
    owners: Array | None = None,
) -> Array:
    """Arrivals and transactions, lane by lane in order; each lane's token.

    ``owners`` are the columns of the blocks that have the objects; None: the lanes' own.
    """
    shared = state.shared
    state.signals += 1
    address = shared.place(state, instr, mask, address, 8, True)
    if shared.track:
        shared._check_valid(state, instr, mask, address, 8, owners)
    if state.observers and owners is None:
        state.report("shared", "atomic", address, 8, mask, instr, order="acq_rel", scope="cta")
    chosen = np.broadcast_to(True if mask is None else mask, state.shape)
    if state.live is not None:
        chosen = chosen & state.live
    full = np.broadcast_to(address, state.shape)
    amount = np.broadcast_to(extra[0], state.shape) if extra else None
    out = np.zeros(state.shape, np.uint64)
    columns, threads = np.nonzero(chosen.T)
    own = np.broadcast_to(shared.columns if owners is None else owners, state.shape)
    for b, t in zip(columns.tolist(), threads.tolist(), strict=True):
        row, owner = int(full[t, b]) >> 2, int(own[t, b])
        word = int(shared.data[row, owner]) | int(shared.data[row + 1, owner]) << 32
        value = 1 if amount is None else int(amount[t, b])
        out[t, b] = word
        new = after(word, form, value, with_bytes)
        if new is None:
            raise fault(
                "mbarrier",
                "more threads arrive at an mbarrier than it was initialised for",
                instr,
                thread=state.thread_xyz(t),
                block=state.block_xyz(b),
                space="shared",
                offset=int(full[t, b]),
            )
        shared.data[row, owner], shared.data[row + 1, owner] = new & 0xFFFFFFFF, new >> 32
    return out


def after(word: int, form: str, value: int, with_bytes: bool) -> int | None:
    """The object after one operation; None if it has more arrivals than expected."""
    pending, expected, tx, phase = unpack(word)
    if form == "expect_tx":
        tx += value
    elif form == "complete_tx":
        tx -= value
    else:
        if with_bytes:
            tx += value
            value = 1
        if form == "arrive_drop":
            expected -= value
        pending -= value
        if pending < 0:
            return None
    if pending == 0 and tx == 0:
        pending, phase = expected, phase ^ 1
    return pack(pending, expected, tx, phase)


def after_copies(instr: Instr, env: Env) -> Op:
    """cp.async.mbarrier.arrive[.noinc]."""
    words = instr.modifiers
    only(instr, words, "async", "mbarrier", "arrive", "noinc", "shared", "shared::cta", "b64")
    base, kind, offset = address_of(instr, instr.operands[0], env)

    def function(state: Any, _instr: Instr, mask: Mask | None, at: Array) -> None:
        copies_of(state).wait(state, mask, None)
        if "noinc" in words:
            _update(state, instr, "arrive", mask, offsets(at, offset, 0), (), False)
        # Without .noinc the pending count is raised and lowered by one: nothing changes.

    return Op(function, (kind,), (), (base,), (), context=True)
