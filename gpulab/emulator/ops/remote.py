"""st.async: stores to shared memory of a block of the cluster, counted by an mbarrier there.

When they are made, says ``gpulab.emulator.landings``.

Source: PTX ISA, "st.async".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.emulator import clusters
from gpulab.emulator.faults import fault
from gpulab.emulator.landings import Landing, landings_of
from gpulab.emulator.ops.memory import address_of, offsets
from gpulab.emulator.ops.registry import Env, Op, elements, spelled, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import BYTES, U32, UNSIGNED, Array, Mask, kind_of

_STORE = (
    r"st\.async(\.weak)?\.shared::cluster\.mbarrier::complete_tx::bytes"
    r"(\.v[24])?\.([bsu](32|64)|f(32|64))"
)


def store(instr: Instr, env: Env) -> Op:
    """An instruction of the ``st.async`` family.

    Raises:
        BuildError: another spelling or vector length.
    """
    spelled(instr, _STORE)
    words = instr.modifiers
    count = next((int(w[1]) for w in words if w in ("v2", "v4")), 1)
    width = BYTES[kind_of(words[-1])]
    target, source, barrier = instr.operands
    items = elements(source)
    if len(items) != count:
        stop(instr, "vector length")
    base, kind, offset = address_of(instr, target, env)
    counter, counter_kind, counter_offset = address_of(instr, barrier, env)

    def function(
        state: Any, _instr: Instr, mask: Mask | None, at: Array, counts: Array, *values: Array
    ) -> None:
        places, owners = _here(state, instr, mask, offsets(at, offset, 0), width * count)
        barriers, others = _here(state, instr, mask, offsets(counts, counter_offset, 0), 8)
        chosen = np.broadcast_to(True if mask is None else mask, state.shape)
        if state.live is not None:
            chosen = chosen & state.live
        apart = chosen & (owners != others)
        if apart.any():
            t, b = state.first(apart)
            raise fault(
                "mbarrier",
                "the bytes and the mbarrier that counts them lie in different blocks",
                instr,
                thread=state.thread_xyz(t),
                block=state.block_xyz(b),
                space="shared",
                offset=int(places[t, b]),
            )
        pieces = _words([np.broadcast_to(v, state.shape) for v in values])
        landings = landings_of(state)
        for column in np.unique(owners[chosen]).tolist():
            for which in np.unique(barriers[chosen & (owners == column)]).tolist():
                lanes = chosen & (owners == column) & (barriers == which)
                first = places[lanes] >> 2
                rows = np.concatenate([first + k for k in range(len(pieces))])
                data = np.concatenate([piece[lanes] for piece in pieces])
                landing = Landing(rows, np.array([column]), data[:, None], 4 * len(rows))
                landings.add(state, which, landing)

    reads = (kind, counter_kind, *(UNSIGNED[width],) * count)
    return Op(function, reads, (), (base, counter, *items), (), context=True)


def _here(
    state: Any, instr: Instr, mask: Mask | None, address: Array, width: int
) -> tuple[Array, Array]:
    """(offset, column of the block that has it) of every lane, looked at as an access is."""
    place, columns = clusters.decoded(state, instr, mask, address)
    place = state.shared.place(state, instr, mask, place, width, True)
    owners = state.shared.columns if columns is None else columns
    return np.broadcast_to(place, state.shape), np.broadcast_to(owners, state.shape)


def _words(values: list[Array]) -> list[Array]:
    """The same in pieces of 32 bits, the low ones first."""
    if values[0].dtype.itemsize == 4:
        return [v.astype(U32) for v in values]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    return [p.astype(U32) for v in values for p in (v & low, v >> half)]
