"""The tensor-core model once more, one output at a time, in Python's exact integers and fractions.

Written from the published description alone and slow on purpose: it shares neither code nor
tables nor number types with the vectorised one.
"""

from fractions import Fraction
from math import floor

import ml_dtypes
import numpy as np

NAN, INF = "nan", "inf"
TYPES = {  # NumPy type of the codes, smallest exponent of a normal number
    "f16": (np.float16, -14),
    "bf16": (ml_dtypes.bfloat16, -126),
    "tf32": (np.float32, -126),
    "f32": (np.float32, -126),
    "e4m3": (ml_dtypes.float8_e4m3fn, -6),
    "e5m2": (ml_dtypes.float8_e5m2, -14),
    "e2m3": (ml_dtypes.float6_e2m3fn, 0),
    "e3m2": (ml_dtypes.float6_e3m2fn, -2),
    "e2m1": (ml_dtypes.float4_e2m1fn, 0),
}


def value(code, ptx):
    """The exact value of a code: a Fraction, NAN, or (INF, sign)."""
    code = int(code)
    if ptx == "tf32":
        code &= 0xFFFFE000
    kind = np.dtype(TYPES[ptx][0])
    with np.errstate(invalid="ignore"):  # a signalling NaN
        number = float(np.array([code], f"u{kind.itemsize}").view(kind).astype(np.float64)[0])
    if number != number:
        return NAN
    if number in (float("inf"), float("-inf")):
        return (INF, 1 if number > 0 else -1)
    return Fraction(number)


def exponent(number, lowest):
    """floor(log2 |number|), at least ``lowest``."""
    n, d = abs(number.numerator), number.denominator
    e = n.bit_length() - d.bit_length()
    if Fraction(n, d) < Fraction(2) ** e:
        e -= 1
    return max(e, lowest)


def cut(number, unit):
    """Toward zero to a multiple of ``unit``."""
    whole = floor(abs(number) / unit) * unit
    return whole if number >= 0 else -whole


def nearest(number, unit):
    """To nearest, ties to even."""
    return round(number / unit) * unit  # round() of a Fraction is half to even


def rounded(number, result):
    """(value, overflowed) after the rounding named as in the model."""
    if number == 0:
        return Fraction(0)
    kept, lowest, top = {
        "rz_f32": (23, -126, 128),
        "rne_f32": (23, -126, 128),
        "rz_e8m13": (13, -126, 128),
        "rne_f16": (10, -14, 16),
        "rz_f16": (10, -14, 16),
    }[result]
    unit = Fraction(2) ** (exponent(number, lowest) - kept)
    out = nearest(number, unit) if result.startswith("rne") else cut(number, unit)
    if abs(out) >= Fraction(2) ** top:
        return (INF, 1 if out > 0 else -1)
    return out


def special(terms):
    """NAN or an infinity that the terms (each a tuple of factors) force, or None."""
    signs = set()
    for factors in terms:
        if NAN in factors:
            return NAN
        infinite = [f for f in factors if isinstance(f, tuple)]
        if infinite:
            if any(f == 0 for f in factors if not isinstance(f, tuple)):
                return NAN
            sign = 1
            for f in factors:
                sign *= f[1] if isinstance(f, tuple) else (1 if f > 0 else -1)
            signs.add(sign)
    if len(signs) == 2:
        return NAN
    return (INF, signs.pop()) if signs else None


def block(pairs, c, exponents, fraction, result):
    """One truncating sum: pairs of factors, an addend, exponent rule of a, b and c."""
    forced = special([*pairs, (c,)])
    if forced is not None:
        return forced
    terms = [
        (a * b, exponent(a, exponents[0]) + exponent(b, exponents[1]))
        for a, b in pairs
        if a != 0 and b != 0
    ]
    if c != 0:
        terms.append((c, exponent(c, exponents[2])))
    if not terms:
        return Fraction(0)
    largest = max(e for _, e in terms)
    if c == 0 and exponents[2] == TYPES["f16"][1]:  # a float16 zero keeps E from going lower
        largest = max(largest, exponents[2] - (fraction - 18))
    unit = Fraction(2) ** (largest - fraction)
    return rounded(sum(cut(t, unit) for t, _ in terms), result)


def add(x, y, result):
    forced = special([(x,), (y,)])
    return forced if forced is not None else rounded(x + y, result)


def code(number, d_type):
    """Bits of a result; zero is +0 and NaN canonical."""
    kind, unsigned = (np.float16, np.uint16) if d_type == "f16" else (np.float32, np.uint32)
    if number == NAN:
        return {"f16": 0x7FFF, "f32": 0x7FFFFFFF}[d_type]
    if isinstance(number, tuple):
        return int(np.array([number[1] * np.inf], dtype=kind).view(unsigned)[0])
    return int(np.array([float(number)], dtype=kind).view(unsigned)[0])


def dot(a, b, c, how):
    """D of one output.

    Args:
        a: codes of one row.
        b: codes of one column.
        c: code of the addend.
        how: dict with a_type, b_type, d_type, k, block, fraction, result, through_fp16.
    """
    x = [value(v, how["a_type"]) for v in a]
    y = [value(v, how["b_type"]) for v in b]
    total = value(c, how["d_type"])
    low_c = TYPES[how["d_type"]][1]
    for start in range(0, len(x), how["k"]):
        ks = range(start, start + how["k"])
        if how["through_fp16"]:
            lows = (-14, -14, low_c)
            part = Fraction(0)
            for halves in ((0, 1), (2, 3)):
                pairs = [(x[k], y[k]) for k in ks if k % 4 in halves]
                part = block(pairs, part, lows, how["fraction"], how["result"])
            nearest_result = "rne_f16" if how["d_type"] == "f16" else "rne_f32"
            total = add(part, total, nearest_result)
            continue
        lows = (TYPES[how["a_type"]][1], TYPES[how["b_type"]][1], low_c)
        for first in range(0, how["k"], how["block"]):
            pairs = [(x[k], y[k]) for k in ks[first : first + how["block"]]]
            total = block(pairs, total, lows, how["fraction"], how["result"])
    return code(total, how["d_type"])


def scaled_dot(a, b, c, scale_a, scale_b, how):
    """D of one block-scaled output; scales are (significand, exponent) or NAN."""
    if NAN in scale_a or NAN in scale_b:
        return code(NAN, "f32")
    x = [value(v, how["a_type"]) for v in a]
    y = [value(v, how["b_type"]) for v in b]
    c = value(c, "f32")
    forced = special([*zip(x, y, strict=True), (c,)])
    if forced is not None:
        return code(forced, "f32")
    terms = [(c, exponent(c, -126))] if c != 0 else []
    for first in range(0, len(x), how["group"]):
        (sa, ea), (sb, eb) = (s[first // how["scale_block"]] for s in (scale_a, scale_b))
        group = [(x[k], y[k]) for k in range(first, first + how["group"])]
        total = sum(p * q for p, q in group) * sa * sb * Fraction(2) ** (ea + eb)
        e = ea + eb
        if how["group"] == 1 and total != 0:
            lows = TYPES[how["a_type"]][1], TYPES[how["b_type"]][1]
            e += exponent(group[0][0], lows[0]) + exponent(group[0][1], lows[1])
        if total != 0:
            terms.append((total, e))
    if not terms:
        return 0
    unit = Fraction(2) ** (max(e for _, e in terms) - how["fraction"])
    return code(rounded(sum(cut(t, unit) for t, _ in terms), "rz_f32"), "f32")
