"""The float16 functions that Numba calls by their C++ names, computed as CUDA's header does.

Numba passes pointers: the first to the result, then one to each argument, and expects a zero
status. Names are the mangled ones of ``cuda_fp16.h`` with the suffix ``_nbst``. Arithmetic,
comparison, conversion and rounding are here; functions that the header builds from approximate
instructions (``hexp``, ``hsin``, ...) are not: the lab links those from the header itself.

Source: numba-cuda 0.30, ``numba/cuda/_internal/cuda_fp16.py`` (names and parameters).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator.ops.edges import saturate
from gpulab.emulator.ops.floating import float_extremum
from gpulab.emulator.ops.half import fma_codes, signed_codes
from gpulab.emulator.ops.memory import load_from, store_to
from gpulab.emulator.ops.moves import comparison
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.smallfloat import decode, encode
from gpulab.emulator.values import DTYPE, Array, Mask

_BYTES = {"half": 2, "f32": 4, "f64": 8, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4,
          "u32": 4, "s64": 8, "u64": 8, "bool": 1}  # fmt: skip
_CODE_OF = {"f": "f32", "d": "f64", "s": "s16", "t": "u16", "i": "s32", "j": "u32", "l": "s64",
            "m": "u64", "x": "s64", "y": "u64"}  # fmt: skip
Entry = tuple[tuple[str, ...], tuple[str, ...], Callable[..., Any]]
TABLE: dict[str, Entry] = {}


def _h(x: Array) -> Array:
    return decode("f16", x)


def _c(x: Array) -> Array:
    return encode("f16", x)


def _add(
    name: str, result: str, arguments: tuple[str, ...], function: Callable[..., Array]
) -> None:
    """One function: values in, value out; halves as uint16 codes."""
    raw = [np.dtype(f"u{_BYTES[k]}") if k in ("half", "bool") else DTYPE[k] for k in arguments]

    def call(state: Any, instr: Instr, mask: Mask | None, to: Array, *pointers: Array) -> Array:
        loaded = [
            load_from(state, "generic", instr, mask, p, 0, _BYTES[k], 1)[0].view(dtype)
            for p, k, dtype in zip(pointers, arguments, raw, strict=True)
        ]
        value = function(*loaded)
        if result == "bool":
            value = value.astype(np.uint8)
        bits = value.view(f"u{_BYTES[result]}")
        store_to(state, "generic", instr, mask, to, 0, _BYTES[result], [bits])
        return np.zeros((1, 1), np.uint32)

    TABLE[f"{name}_nbst"] = (("u32",), ("u64",) * (1 + len(arguments)), call)


def _constructor(name: str, argument: str, function: Callable[..., Array]) -> None:
    """A constructor: (ignored result, object, argument); writes the object."""

    def call(
        state: Any, instr: Instr, mask: Mask | None, _to: Array, itself: Array, source: Array
    ) -> Array:
        width = _BYTES[argument]
        raw = load_from(state, "generic", instr, mask, source, 0, width, 1)[0]
        value = function(raw if argument == "half" else raw.view(DTYPE[argument]))
        store_to(state, "generic", instr, mask, itself, 0, 2, [value.view(np.uint16)])
        return np.zeros((1, 1), np.uint32)

    TABLE[f"{name}_nbst"] = (("u32",), ("u64", "u64", "u64"), call)


def _to_half(mode: str) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        if x.dtype.kind == "f":
            return encode("f16", x, mode)
        # Every integer beyond 65504 + 16 overflows in the same way: clamp before float64 rounds.
        return encode(
            "f16",
            np.clip(x, -(1 << 20) if x.dtype.kind == "i" else 0, 1 << 20).astype(np.float64),
            mode,
        )

    return run


def _to_integer(kind: str, rounder: Any) -> Callable[[Array], Array]:
    info: Any = np.iinfo(DTYPE[kind])

    def run(x: Array) -> Array:
        y = rounder(_h(x).astype(np.float64))
        nan = np.isnan(y)
        big, small = y > float(info.max), y < float(info.min)
        out = np.where(nan | big | small, 0, y).astype(DTYPE[kind])
        out = np.where(
            big, DTYPE[kind].type(info.max), np.where(small, DTYPE[kind].type(info.min), out)
        )
        wide = _BYTES[kind] == 8
        bad = info.min if kind[0] == "s" else 1 << 63
        return np.where(nan, DTYPE[kind].type(bad if wide else 0), out)

    return run


def _fill() -> None:
    two = ("half", "half")
    ufuncs: dict[str, Any] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
    }
    signs = {"add": "pl", "sub": "mi", "mul": "ml", "div": "dv"}
    for word, ufunc in ufuncs.items():
        plain = lambda a, b, f=ufunc: _c(f(_h(a), _h(b)))  # noqa: E731
        sign = signs[word]
        _add(f"_Z{sign}RK6__halfS1_", "half", two, plain)
        _add(f"_Z{sign[0]}{sign[1].upper()}R6__halfRKS_", "half", two, plain)
        _add(f"_ZL6__h{word}6__halfS_", "half", two, plain)
        if word != "div":
            _add(f"_ZL9__h{word}_rn6__halfS_", "half", two, plain)
            clamped = lambda a, b, f=ufunc: _c(saturate(f(_h(a), _h(b))))  # noqa: E731
            _add(f"_ZL10__h{word}_sat6__halfS_", "half", two, clamped)
    three = ("half",) * 3
    _add("_ZL6__hfma6__halfS_S_", "half", three, fma_codes("f16"))
    _add("_ZL10__hfma_sat6__halfS_S_", "half", three, fma_codes("f16", ("sat",)))
    _add("_ZL11__hfma_relu6__halfS_S_", "half", three, fma_codes("f16", ("relu",)))
    _add("_ZngRK6__half", "half", ("half",), signed_codes("neg", "f16"))
    _add("_ZL6__hneg6__half", "half", ("half",), signed_codes("neg", "f16"))
    _add("_ZpsRK6__half", "half", ("half",), lambda a: a)
    _add("_ZL6__habs6__half", "half", ("half",), signed_codes("abs", "f16"))
    for word in ("max", "min"):
        for suffix, nan in (("", False), ("_nan", True)):
            pick = float_extremum(word, nan)
            name = f"_ZL{6 + len(suffix)}__h{word}{suffix}6__halfS_"
            _add(name, "half", two, lambda a, b, f=pick: _c(f(_h(a), _h(b))))
    for word in ("eq", "ne", "lt", "le", "gt", "ge"):
        for unordered in ("", "u"):
            test = comparison(word + unordered, True)
            name = f"_ZL{5 + len(unordered)}__h{word}{unordered}6__halfS_"
            _add(name, "bool", two, lambda a, b, f=test: f(_h(a), _h(b)))
        # The operators: != is true of NaN, the others are not.
        test = comparison("neu" if word == "ne" else word, True)
        _add(f"_Z{word}RK6__halfS1_", "bool", two, lambda a, b, f=test: f(_h(a), _h(b)))
    _add("_ZL8__hisnan6__half", "bool", ("half",), lambda a: np.isnan(_h(a)))
    _add(
        "_ZL8__hisinf6__half", "s32", ("half",),
        lambda a: np.where(np.isinf(_h(a)), np.sign(_h(a)), 0).astype(np.int32),
    )  # fmt: skip
    rounders: dict[str, Any] = {
        "trunc": np.trunc,
        "ceil": np.ceil,
        "floor": np.floor,
        "rint": np.rint,
    }
    for word, rounder in rounders.items():
        name = f"_ZL{1 + len(word)}h{word}6__half"
        _add(name, "half", ("half",), lambda a, f=rounder: _c(f(_h(a))))
    _add("_ZL5hsqrt6__half", "half", ("half",), lambda a: _c(np.sqrt(_h(a))))
    _fill_conversions()


def _fill_conversions() -> None:
    modes = {"rn": "rn", "rz": "rz", "rd": "rm", "ru": "rp"}
    rounders: dict[str, Any] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
    integers = {
        "char": ("s8", "a"), "uchar": ("u8", "h"), "short": ("s16", "s"), "ushort": ("u16", "t"),
        "int": ("s32", "i"), "uint": ("u32", "j"), "ll": ("s64", "x"), "ull": ("u64", "y"),
    }  # fmt: skip
    for word, (kind, code) in integers.items():
        narrow = word in ("char", "uchar")  # of these only the conversion toward zero exists
        for short, mode in modes.items():
            name = f"__half2{word}_{short}"
            if not narrow or short == "rz":
                rounder = rounders[short]
                _add(f"_ZL{len(name)}{name}6__half", kind, ("half",), _to_integer(kind, rounder))
            name = f"__{word}2half_{short}"
            if not narrow:
                _add(f"_ZL{len(name)}{name}{code}", "half", (kind,), _to_half(mode))
    for short, mode in modes.items():
        _add(f"_ZL15__float2half_{short}f", "half", ("f32",), _to_half(mode))
    _add("_ZL12__float2halff", "half", ("f32",), _to_half("rn"))
    _add("_ZL13__double2halfd", "half", ("f64",), _to_half("rn"))
    _add("_ZL12__half2float6__half", "f32", ("half",), _h)
    for word in ("short", "ushort"):
        kind, code = integers[word]
        name = f"__half_as_{word}"
        _add(f"_ZL{len(name)}{name}6__half", kind, ("half",), lambda a: a)
        name = f"__{word}_as_half"
        _add(f"_ZL{len(name)}{name}{code}", "half", (kind,), lambda a: a)
    for code, kind in _CODE_OF.items():
        _constructor(f"_ZN6__halfC1E{code}", kind, _to_half("rn"))
    _constructor("_ZN6__halfC1ERK10__half_raw", "half", lambda a: a)
    bf16_value: Callable[[Array], Array] = lambda a: _c(decode("bf16", a))  # noqa: E731
    _constructor("_ZN6__halfC1E13__nv_bfloat16", "half", bf16_value)


_fill()
