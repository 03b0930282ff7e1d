"""ld and st of every space, and where an address operand points.

Source: PTX ISA, sections "ld", "st", "Memory Consistency Model". Order and scope modifiers are
kept for observers; the interpreter itself is sequentially consistent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import access, clusters, spaces
from gpulab.emulator.faults import fault
from gpulab.emulator.ops.registry import (
    Env,
    Op,
    elements,
    family,
    only,
    result_registers,
    simple,
    stop,
)
from gpulab.emulator.ptx.nodes import Imm, Instr, Mem, Operand, Reg, Sym
from gpulab.emulator.values import BYTES, COERCE, DTYPE, S64, UNSIGNED, Array, Mask, kind_of

ORDER_WORDS = (
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio",
    "cta", "gpu", "sys", "cluster",
)  # fmt: skip
CACHE_WORDS = (
    "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
    "L1::no_allocate", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B",
    "L2::evict_first", "L2::evict_last", "L2::evict_normal",
)  # fmt: skip
"""Hints about caches and prefetching: they change no value."""

SPACE_WORDS = {
    "global": "global", "shared": "shared", "shared::cta": "shared",
    "shared::cluster": "cluster", "local": "local",
    "const": "global", "param": "param",
}  # fmt: skip


def space_of(words: tuple[str, ...]) -> str:
    """The state space a memory instruction names, ``generic`` if none."""
    return next((SPACE_WORDS[w] for w in words if w in SPACE_WORDS), "generic")


def address_of(instr: Instr, operand: Operand, env: Env) -> tuple[Operand, str, int]:
    """(base operand, kind in which to read it, byte offset) of ``[base + offset]``.

    Raises:
        BuildError: not an address.
    """
    if not isinstance(operand, Mem):
        stop(instr, "address form")
    base = operand.base
    if isinstance(base, Reg):
        width = BYTES[kind_of(env.kernel.registers[base.name])]
        return base, UNSIGNED[width], operand.offset
    if isinstance(base, Sym):
        return Imm(env.address(base.name, instr)), "u64", operand.offset + base.offset
    return base, "u64", operand.offset


def offsets(base: Array, offset: int, origin: int) -> Array:
    """Base register and offset as int64 bytes from the start of a window."""
    if base.dtype.itemsize == 8:
        moved: Array = base.view(S64)
        return moved + np.int64(offset - origin)
    # 32-bit addresses wrap: a register below zero and a positive offset meet inside the window.
    low: Array = base.view(np.int32) if base.dtype.itemsize == 4 else base
    return low.astype(S64) + np.int64(offset - origin)


Loader = Callable[[Any, Instr, Mask | None, Array, int, int], list[Array]]


def _generic_parts(state: Any, instr: Instr, mask: Mask | None, base: Array, offset: int) -> Any:
    """(space, mask, window offset) for each window that lanes of a generic access lie in."""
    address = base + np.uint64(offset & 0xFFFFFFFFFFFFFFFF) if offset else base
    windows = spaces.window(address)
    origins = {
        "global": spaces.GLOBAL_BASE,
        "shared": spaces.SHARED_BASE,
        "local": spaces.LOCAL_BASE,
    }
    for name, origin in origins.items():
        here = windows == spaces.WINDOWS[name]
        chosen = here if mask is None else here & mask
        if here.all():
            yield name, mask, address.view(S64) - np.int64(origin)
            return
        if chosen.any():
            yield name, chosen, address.view(S64) - np.int64(origin)
    lost = windows == spaces.WINDOWS["none"]
    lost = lost if mask is None else lost & mask
    if lost.any():
        t, b = state.first(lost)
        where = int(np.broadcast_to(address, state.shape)[t, b])
        raise fault(
            "out_of_bounds",
            f"generic address {where:#x} lies in no window",
            instr,
            thread=state.thread_xyz(t),
            block=state.block_xyz(b),
            space="generic",
            address=where,
            lanes=state.count(lost),
        )


def load_from(
    state: Any,
    space: str,
    instr: Instr,
    mask: Mask | None,
    base: Array,
    offset: int,
    width: int,
    count: int,
) -> list[Array]:
    """Load from a space; generic addresses go to the windows they lie in.

    Raises:
        FaultError: whatever the space finds wrong.
    """
    if space == "global":
        at = offsets(base, offset, spaces.GLOBAL_BASE)
        return access.load(state, instr, mask, at, width, count)
    if space == "shared":
        found: list[Array] = state.shared.load(
            state, instr, mask, offsets(base, offset, 0), width, count
        )
        return found
    if space == "local":
        own: list[Array] = state.local.load(
            state, instr, mask, offsets(base, offset, 0), width, count
        )
        return own
    if space == "cluster":
        return clusters.load(state, instr, mask, offsets(base, offset, 0), width, count)
    loaders: dict[str, Loader] = {
        "global": access.load,
        "shared": clusters.load,
        "local": lambda *a: state.local.load(*a),
    }
    out: list[Array] | None = None
    for name, lanes, at in _generic_parts(state, instr, mask, base, offset):
        part = loaders[name](state, instr, lanes, at, width, count)
        if out is None:
            out = part
        else:
            out = [np.where(lanes, new, old) for new, old in zip(part, out, strict=True)]
    assert out is not None
    return out


def store_to(
    state: Any,
    space: str,
    instr: Instr,
    mask: Mask | None,
    base: Array,
    offset: int,
    width: int,
    values: list[Array],
) -> None:
    """Store to a space; see ``load_from``."""
    if space == "global":
        at = offsets(base, offset, spaces.GLOBAL_BASE)
        access.store(state, instr, mask, at, width, values)
    elif space == "shared":
        state.shared.store(state, instr, mask, offsets(base, offset, 0), width, values)
    elif space == "cluster":
        clusters.store(state, instr, mask, offsets(base, offset, 0), width, values)
    elif space == "local":
        state.local.store(state, instr, mask, offsets(base, offset, 0), width, values)
    else:
        for name, lanes, at in _generic_parts(state, instr, mask, base, offset):
            if name == "global":
                access.store(state, instr, lanes, at, width, values)
            else:
                put = clusters.store if name == "shared" else state.local.store
                put(state, instr, lanes, at, width, values)


def _shape_of(instr: Instr) -> tuple[int, str]:
    words = instr.modifiers
    only(
        instr, words[:-1], *ORDER_WORDS, *CACHE_WORDS, *SPACE_WORDS, "v2", "v4", "v8", "entry",
        "func",
    )  # fmt: skip
    count = next((int(w[1]) for w in words if w in ("v2", "v4", "v8")), 1)
    return count, kind_of(words[-1])


@family("ld", "ldu")
def _ld(instr: Instr, env: Env) -> Op:
    count, kind = _shape_of(instr)
    space = space_of(instr.modifiers)
    results = result_registers(instr, instr.operands[0])
    if len(results) != count:
        stop(instr, "vector length")
    width = BYTES[kind]
    raw = UNSIGNED[width]
    # float loads keep integer arrays: NaN payloads come from memory as they are
    writes = (kind if kind[0] == "s" else raw,) * count
    address = instr.operands[1]
    if space == "param":
        if isinstance(address, Mem) and isinstance(address.base, Sym):
            return _entry_param(address, raw, writes, results, env)
        space = "global"
    base, base_kind, offset = address_of(instr, address, env)
    if space == "generic":
        base_kind = "u64"

    def function(state: Any, _instr: Instr, mask: Mask | None, at: Array) -> Any:
        got = load_from(state, space, instr, mask, at, offset, width, count)
        if kind[0] == "s":
            got = [g.view(DTYPE[kind]) for g in got]
        return got[0] if count == 1 else tuple(got)

    return Op(function, (base_kind,), writes, (base,), results, context=True)


def _entry_param(address: Mem, raw: str, writes: tuple[str, ...], results: Any, env: Env) -> Op:
    assert isinstance(address.base, Sym)
    start = env.kernel.params[address.base.name][0] + address.offset + address.base.offset

    def function(state: Any, _instr: Instr, _mask: Mask | None) -> Any:
        got = tuple(
            COERCE[kind](state.param(start + i * BYTES[raw], raw)) for i, kind in enumerate(writes)
        )
        return got[0] if len(got) == 1 else got

    return Op(function, (), writes, (), results, context=True)


@family("st")
def _st(instr: Instr, env: Env) -> Op:
    if instr.modifiers[0] == "async":
        from gpulab.emulator.ops import remote

        return remote.store(instr, env)
    count, kind = _shape_of(instr)
    space = space_of(instr.modifiers)
    items = elements(instr.operands[1])
    if len(items) != count:
        stop(instr, "vector length")
    if space == "param":
        stop(instr, "store to a parameter")
    base, base_kind, offset = address_of(instr, instr.operands[0], env)
    if space == "generic":
        base_kind = "u64"
    width = BYTES[kind]
    raw = UNSIGNED[width]

    def function(state: Any, _instr: Instr, mask: Mask | None, at: Array, *values: Array) -> None:
        store_to(state, space, instr, mask, at, offset, width, list(values))

    return Op(function, (base_kind, *(raw,) * count), (), (base, *items), (), context=True)


@family("mapa")
def _mapa(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    only(instr, words, "shared::cluster", "u32", "u64")
    kind = words[-1]
    _, address, _ = instr.operands
    if isinstance(address, Mem):
        stop(instr)
    return simple(instr, clusters.mapped, (kind, "u32"), kind)
