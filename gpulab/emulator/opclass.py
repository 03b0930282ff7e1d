"""Sorting PTX opcodes into a few classes a reader can hold in mind."""

from __future__ import annotations

import re
from functools import lru_cache

CLASSES = {
    "tensor": "matrix products (mma, wgmma, wmma)",
    "global": "global memory loads, stores and atomics",
    "shared": "shared memory loads, stores and atomics, ldmatrix",
    "local": "local memory (arrays indexed at run time, and spills)",
    "async copy": "cp.async and its waits",
    "parameter": "loads of kernel parameters and constants",
    "fp64": "double precision",
    "fp32": "single precision",
    "half": "fp16 and bf16, scalar or in pairs",
    "special": "approximate functions, division and square root",
    "convert": "conversions between types",
    "integer": "integer and bit operations",
    "compare": "comparisons, selections and predicates",
    "move": "moves and address conversions",
    "warp": "shuffles, votes and other exchanges inside a warp",
    "barrier": "barriers and fences",
    "control": "branches, calls and returns",
    "other": "anything else",
}
"""Class -> what is in it."""

_BY_BASE = {
    **dict.fromkeys(("mma", "wgmma", "wmma"), "tensor"),
    **dict.fromkeys(("ldmatrix", "stmatrix", "movmatrix"), "shared"),
    **dict.fromkeys(("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"), "special"),
    **dict.fromkeys(("cvt",), "convert"),
    **dict.fromkeys(("setp", "set", "selp", "slct", "testp"), "compare"),
    **dict.fromkeys(("mov", "cvta", "isspacep"), "move"),
    **dict.fromkeys(("shfl", "vote", "match", "redux", "activemask", "elect"), "warp"),
    **dict.fromkeys(("bar", "barrier", "membar", "fence", "mbarrier"), "barrier"),
    **dict.fromkeys(("bra", "brx", "call", "ret", "exit", "trap", "brkpt", "nanosleep"), "control"),
}
_MEMORY = {"ld", "st", "ldu", "atom", "red", "prefetch"}
_FLOAT = {"f64": "fp64", "f32": "fp32", "f16": "half", "f16x2": "half"}
_INTEGER = re.compile(r"[usb](8|16|32|64|128)|[us]16x2|pred")
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_TYPES = {"f16", "bf16", "tf32", "f32", "f64", "e4m3", "e5m2", "e2m1", "e2m3", "e3m2", "s8", "u8"}
_TYPES |= {"s4", "u4", "b1", "s32"}


@lru_cache(maxsize=4096)
def classify(opcode: str) -> str:
    """The class (a key of ``CLASSES``) of a full PTX opcode."""
    parts = opcode.split(".")
    base, rest = parts[0], parts[1:]
    if base == "cp":
        return "async copy"
    if base in _MEMORY:
        for space in ("shared", "local", "param", "const"):
            if any(part.split("::")[0] == space for part in rest):
                return "parameter" if space in ("param", "const") else space
        return "global"
    if base in _BY_BASE:
        return _BY_BASE[base]
    if base == "div" and any(part.startswith(("f", "bf")) for part in rest):
        return "fp64" if "f64" in rest else "special"
    for part in reversed(rest):
        if part in _FLOAT or part.startswith("bf16"):
            return _FLOAT.get(part, "half")
        if _INTEGER.fullmatch(part):
            return "compare" if part == "pred" else "integer"
    return "other"


@lru_cache(maxsize=256)
def matrix_product(opcode: str) -> tuple[int, str] | None:
    """What one warp's share of a matrix instruction multiplies.

    A ``wgmma`` is executed by four warps together, so a warp's share is a quarter.

    Returns:
        (multiply-adds, name of the operand types such as ``f16`` or ``e4m3.e5m2``); None for
        instructions that multiply no matrices.
    """
    base, _, rest = opcode.partition(".")
    shape = _SHAPE.search(rest)
    if base not in ("mma", "wgmma", "wmma") or shape is None or ".load" in opcode:
        return None
    if base == "wmma" and not rest.startswith("mma"):
        return None
    m, n, k = (int(extent) for extent in shape.groups())
    types = [part for part in rest.split(".") if part in _TYPES]
    # mma: D A B C; wgmma: D A B; wmma (integers: D A B C; floats name D and C only).
    operands = types[1:3] if len(types) >= 3 else ["f16", "f16"]
    name = operands[0] if operands[0] == operands[-1] else ".".join(operands)
    return m * n * k // (4 if base == "wgmma" else 1), name
