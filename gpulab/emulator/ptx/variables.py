"""Variable declarations of every state space, with their initial bytes."""

from __future__ import annotations

import struct

from gpulab.emulator.ptx.cursor import Cursor, is_number
from gpulab.emulator.ptx.nodes import TYPE_BYTES, Imm, Variable


def parse_variables(cursor: Cursor, space: str, extern: bool = False) -> list[Variable]:
    """Everything after the space: alignment, type, names with sizes, initial values.

    Stops before the ``;``, ``,`` or ``)`` that ends the declaration of a parameter; for other
    spaces several names may follow one another.
    """
    align, kind, vector = 0, "", 1
    while cursor.peek().startswith("."):
        word = cursor.take()[1:]
        if word == "align":
            align = cursor.integer()
        elif word == "ptr":
            _skip_pointer_notes(cursor)
        elif word in ("v2", "v4"):
            vector = int(word[1])
        elif word in TYPE_BYTES:
            kind = word
        elif word in ("attribute", "texref", "surfref", "samplerref"):
            cursor.fail(f".{word} is not supported")
        else:
            cursor.fail(f"unknown word .{word} in a declaration")
    if not kind:
        cursor.fail("a declaration without a type")
    found = []
    while True:
        found.append(_one(cursor, space, kind, vector, align, extern))
        if space == "param" or not cursor.accept(","):
            return found


def _skip_pointer_notes(cursor: Cursor) -> None:
    while cursor.peek() in (".global", ".shared", ".local", ".const", ".align"):
        if cursor.take() == ".align":
            cursor.integer()


def _one(cursor: Cursor, space: str, kind: str, vector: int, align: int, extern: bool) -> Variable:
    name = cursor.take()
    width = TYPE_BYTES[kind]
    count: int | None = None
    open_ended = False
    while cursor.accept("["):
        if cursor.accept("]"):
            open_ended = True
            continue
        count = (1 if count is None else count) * cursor.integer()
        cursor.expect("]")
    initial: bytes | None = None
    relocations: tuple[tuple[int, int, str, int], ...] = ()
    if cursor.accept("="):
        initial, relocations = _initial(cursor, kind)
    if open_ended:
        nbytes = 0 if initial is None else len(initial)
    else:
        nbytes = width * vector * (1 if count is None else count)
    return Variable(
        name,
        space,
        kind,
        nbytes,
        align or width * vector or 1,
        initial,
        relocations,
        extern or (open_ended and initial is None),
    )


def _initial(cursor: Cursor, kind: str) -> tuple[bytes, tuple[tuple[int, int, str, int], ...]]:
    data = bytearray()
    relocations: list[tuple[int, int, str, int]] = []
    width = TYPE_BYTES[kind]
    depth = 0
    while True:
        word = cursor.take()
        if word == "{":
            depth += 1
        elif word == "}":
            depth -= 1
        elif word == ",":
            continue
        else:
            negative = word == "-"
            if negative:
                word = cursor.take()
            if is_number(word):
                data += _encode(cursor.literal(word, negative), kind, width)
            else:
                relocations.append(_address(cursor, word, len(data), width))
                data += bytes(width)
        if depth == 0:
            return bytes(data), tuple(relocations)


def _encode(literal: Imm, kind: str, width: int) -> bytes:
    if not literal.float_bits:
        if kind == "f32":
            return struct.pack("<f", float(literal.bits))
        if kind == "f64":
            return struct.pack("<d", float(literal.bits))
        return (literal.bits & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    if literal.float_bits == 8 * width:
        return literal.bits.to_bytes(width, "little")
    value = struct.unpack("<d", literal.bits.to_bytes(8, "little"))[0]
    return struct.pack("<f", value)


def _address(cursor: Cursor, word: str, at: int, width: int) -> tuple[int, int, str, int]:
    if word == "generic":
        cursor.expect("(")
        word = cursor.take()
        cursor.expect(")")
    elif word == "mask":
        cursor.fail("mask() initialisers are not supported")
    addend = cursor.integer() if cursor.accept("+") else 0
    if cursor.peek() == "-":
        addend = cursor.integer()
    return at, width, word, addend
