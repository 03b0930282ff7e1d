"""``.param`` variables of calls as registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from gpulab.emulator.ptx.nodes import (
    TYPE_BYTES,
    Instr,
    Label,
    Mem,
    Operand,
    Reg,
    Sym,
    Variable,
    Vec,
    symbols_of,
)


def _access(instr: Instr) -> tuple[bool, Mem, list[Operand], str] | None:
    """(is a load, address, element operands, type) of an ld.param/st.param, else None."""
    words = instr.modifiers
    if instr.base not in ("ld", "st") or "param" not in words:
        return None
    load = instr.base == "ld"
    address, value = instr.operands[1 if load else 0], instr.operands[0 if load else 1]
    assert isinstance(address, Mem)
    items: list[Operand] = list(value.items) if isinstance(value, Vec) else [value]
    return load, address, items, words[-1]


def promote_params(
    code: list[Instr | Label], registers: dict[str, str], slots: Mapping[str, Variable]
) -> dict[str, Variable]:
    """Rewrite accesses to ``slots`` in place; returns the slots that must stay memory.

    A slot stays memory where its address is used otherwise or two accesses overlap in part.
    """
    if not slots:
        return {}
    pieces: dict[str, set[tuple[int, int]]] = {name: set() for name in slots}
    stay: set[str] = set()
    for instr in code:
        if isinstance(instr, Label):
            continue
        found = _access(instr)
        if found is not None and isinstance(found[1].base, Sym):
            _, address, items, kind = found
            name = found[1].base.name
            if name in pieces:
                width = TYPE_BYTES[kind]
                for i in range(len(items)):
                    pieces[name].add((address.offset + i * width, width))
        else:
            stay |= {s for o in instr.operands for s in symbols_of(o) if s in slots}
    for name, cells in pieces.items():
        ordered = sorted(cells)
        for (a, wa), (b, _) in pairwise(ordered):
            if a + wa > b:
                stay.add(name)
    rewritten: list[Instr | Label] = []
    for instr in code:
        found = None if isinstance(instr, Label) else _access(instr)
        name = found[1].base.name if found and isinstance(found[1].base, Sym) else ""
        if found is None or isinstance(instr, Label) or name not in slots:
            rewritten.append(instr)
        elif name in stay:
            rewritten.append(replace(instr, opcode=instr.opcode.replace(".param", ".local", 1)))
        else:
            rewritten += _moves(instr, found, name, registers)
    code[:] = rewritten
    return {name: v for name, v in slots.items() if name in stay}


def _moves(
    instr: Instr,
    access: tuple[bool, Mem, list[Operand], str],
    name: str,
    registers: dict[str, str],
) -> list[Instr]:
    load, address, items, kind = access
    width = TYPE_BYTES[kind]
    out = []
    for i, item in enumerate(items):
        cell = Reg(f"{name}+{address.offset + i * width}")
        registers[cell.name] = f"b{8 * width}"
        operands = (item, cell) if load else (cell, item)
        out.append(replace(instr, opcode=f"mov.{kind}", operands=operands))
    return out
