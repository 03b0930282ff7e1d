"""The format table, and what each format stores of a value: data, one record a row.

Records are JSON-able; numbers that JSON cannot carry become ``"inf"``, ``"-inf"`` and ``"nan"``.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import numpy as np

from gpulab.errors import UsageError
from gpulab.formats import FORMATS, Block, Format, Rounding, decode, encode, get
from gpulab.formats.codec import to_codes
from gpulab.formats.packing import quantise

TF32_LAYOUT = "layout is implementation defined (PTX ISA): not drawn"


def json_number(value: float | None) -> float | str | None:
    """A float as JSON can carry it."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def parse_value(text: str) -> float:
    """A number as the user wrote it: decimal, hexadecimal float, ``inf`` or ``nan``.

    Raises:
        UsageError: not a number, or outside the range of float64.
    """
    word = text.strip().lower()
    try:
        if word.lstrip("+-").startswith("0x"):
            value, nonzero = float.fromhex(word), any(c in "123456789abcdef" for c in _digits(word))
        else:
            value = float(word)
            nonzero = math.isfinite(value) and Decimal(word) != 0
    except OverflowError:
        value, nonzero = math.inf, True
    except (ValueError, InvalidOperation):
        raise UsageError(
            f"{text!r} is not a number", fix="write 1.0007, -3e5, 0x1.8p3, inf or nan"
        ) from None
    named = word.lstrip("+-").startswith(("inf", "nan"))
    if (math.isinf(value) and not named) or (value == 0 and nonzero):
        raise UsageError(
            f"{text} is outside the range of float64 (4.9e-324 to 1.8e308), where values start",
            fix="write inf for infinity, 0 for zero",
        )
    return value


def _digits(word: str) -> str:
    """Significand digits of a hexadecimal float."""
    return word.lstrip("+-")[2:].partition("p")[0]


def format_records() -> list[dict[str, Any]]:
    """One record a format: widths, constants, special codes and what multiplies it."""
    return [_format_record(row) for row in FORMATS.values()]


def _format_record(row: Format) -> dict[str, Any]:
    subnormal = None if row.is_integer or not row.signed else row.min_subnormal
    record: dict[str, Any] = {
        "schema": 1,
        "kind": "format",
        "format": row.name,
        "title": row.title,
        "bits": row.bits,
        "sign_bits": int(row.signed),
        "exponent_bits": row.exponent_bits,
        "mantissa_bits": row.mantissa_bits,
        "bias": None if row.is_integer else row.bias,
        "largest": row.max_finite,
        "smallest_normal": row.min_normal,
        "smallest_subnormal": subnormal,
        "gap_at_one": row.eps,
        "specials": row.specials,
        "has_inf": row.has_inf,
        "has_nan": row.has_nan,
        "ptx": row.ptx,
        "cpp": row.cpp,
        "needs": [
            {"target": p.target, "family": p.family, "instruction": p.instruction}
            for p in row.paths
        ],
        "source": row.source,
    }
    if row.block is not None:
        scale = get(row.block.scale)
        scales = [scale, *([get(row.block.tensor_scale)] if row.block.tensor_scale else [])]
        smallest = math.prod(s.min_subnormal for s in scales)
        record |= {
            "block": row.block.length,
            "scale": row.block.scale,
            "tensor_scale": row.block.tensor_scale,
            "elements": list(row.block.elements),
            "bits_per_value": row.bits + scale.bits / row.block.length,
            "largest": row.max_finite * math.prod(s.max_finite for s in scales),
            "smallest_normal": row.min_normal * smallest,
            "smallest_subnormal": row.min_subnormal * smallest,
        }
    return record


def value_records(
    text: str, rounding: Rounding = "nearest", saturate: bool = False
) -> list[dict[str, Any]]:
    """What every format stores of one value.

    Args:
        text: the number as the user wrote it.
        rounding: ``nearest`` or ``toward_zero``; block formats always round to nearest.
        saturate: overflow becomes the largest finite value; block formats always saturate.

    Returns:
        A record a format: ``code`` (hexadecimal), ``fields`` (bits as sign, exponent, mantissa),
        ``stored``, ``relative_error`` (exact quotient, rounded once), ``flag``, ``note``.

    Raises:
        UsageError: the text is no number of float64.
    """
    value = parse_value(text)
    return [
        {
            "schema": 1,
            "kind": "value",
            "text": text,
            "value": json_number(value),
            "rounding": rounding if row.block is None else "nearest",
            "saturate": saturate or row.block is not None,
            "format": row.name,
            **(
                _in_block(row, row.block, value)
                if row.block
                else _plain(row, value, rounding, saturate)
            ),
        }
        for row in FORMATS.values()
    ]


def _plain(row: Format, value: float, rounding: Rounding, saturate: bool) -> dict[str, Any]:
    stored_code = encode(row, value, rounding, saturate)
    stored = float(decode(row, stored_code))
    code = int(to_codes(row, stored_code))
    drawn = row.container_shift == 0
    return {
        "code": _hexadecimal(row, code) if drawn else None,
        "fields": fields(row, code) if drawn else None,
        "stored": json_number(stored),
        "relative_error": relative_error(value, stored),
        "flag": _flag(row, value, stored, rounding),
        "note": "" if drawn else TF32_LAYOUT,
    }


def _in_block(row: Format, block: Block, value: float) -> dict[str, Any]:
    """The value alone in its block, so that the scale is chosen for it."""
    made = quantise(row, [value])
    stored = float(made.dequantise()[0])
    element, code, scale_code = made.element, int(made.codes[0]), int(made.scales[0])
    scale = float(decode(block.scale, made.scales)[0])
    part = float(decode(element, made.codes)[0])
    note = f"a block of its own: {element.name} {part:g} x {block.scale} {power_text(scale)}"
    if block.tensor_scale is not None:
        note += (
            f" x {block.tensor_scale} {made.tensor_scale:.9g}, which fits itself to a lone value"
        )
    return {
        "code": _hexadecimal(row, code),
        "fields": fields(element, code),
        "scale_code": _hexadecimal(get(block.scale), scale_code),
        "scale": json_number(scale),
        "tensor_scale": made.tensor_scale,
        "scale_rule": made.rule,
        "stored": json_number(stored),
        "relative_error": relative_error(value, stored),
        "flag": "nan block" if math.isnan(stored) else "",
        "note": f"{note} (scale rule {made.rule})",
    }


def _hexadecimal(row: Format, code: int) -> str:
    return f"0x{code:0{-(-row.bits // 4)}x}"


def fields(row: Format, code: int) -> str:
    """The code's bits as ``sign|exponent|mantissa``; integers are one field."""
    bits = f"{code:0{row.bits}b}"
    if row.is_integer:
        return bits
    widths = (int(row.signed), row.exponent_bits, row.mantissa_bits)
    parts, start = [], 0
    for width in widths:
        if width:
            parts.append(bits[start : start + width])
        start += width
    return "|".join(parts)


def relative_error(value: float, stored: float) -> float | None:
    """|stored - value| / |value|, the exact quotient rounded once; None where it has no meaning."""
    if not (math.isfinite(value) and math.isfinite(stored)):
        return None
    if value == 0:
        return 0.0 if stored == 0 else None
    return float(abs(Fraction(stored) - Fraction(value)) / abs(Fraction(value)))


def _flag(row: Format, value: float, stored: float, rounding: Rounding) -> str:
    """What happened beside rounding, in a word or two; empty for an ordinary rounding."""
    if math.isnan(value):
        return "nan" if math.isnan(stored) else "no nan: " + ("0" if stored == 0 else "largest")
    if math.isnan(stored):
        if row.specials == "scale" and value <= 0:
            return "nan: no zero, no sign"
        return "overflow: nan"
    if math.isinf(stored):
        return "inf" if math.isinf(value) else "overflow: inf"
    if _beyond(row, value, rounding):
        return "saturated"
    if value != 0 and stored == 0:
        return "underflow: 0"
    if row.specials == "scale" and value < row.min_normal:
        return "raised to the smallest"
    if 0 < abs(stored) < row.min_normal:
        return "subnormal"
    return ""


def _beyond(row: Format, value: float, rounding: Rounding) -> bool:
    """Whether an unbounded exponent range would have given a larger magnitude than the largest."""
    limit = row.max_finite if value > 0 else abs(row.min_finite)
    if math.isinf(value):
        return True
    gap = 1.0 if row.is_integer else float(np.ldexp(row.eps, row.max_exponent))
    if rounding == "toward_zero":
        return abs(value) >= limit + gap
    tie_goes_up = row.max_code % 2 == 1 or row.specials == "scale"
    if row.is_integer:
        tie_goes_up = int(limit) % 2 == 1
    return abs(value) > limit + gap / 2 or (abs(value) == limit + gap / 2 and tie_goes_up)


def power_text(value: float) -> str:
    """A power of two as ``2^e``; any other number shortly."""
    if math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:.6g}"
