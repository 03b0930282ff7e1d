"""Exact conversion between float64 values and the codes of a format.

Every conversion rounds once, from the float64 value itself: no intermediate float32, so none of
the double roundings of ``float64 -> float32 -> bf16``.

Rules at the edges (``saturate=False`` unless told):

- Rounding to nearest, ties to even. A result beyond the largest finite value becomes Inf where
  the format has one (fp32, tf32, fp16, bf16, e5m2), NaN where it has only NaN (e4m3, e8m0), and
  the largest finite value where it has neither (fp6, fp4, integers).
- Rounding toward zero never passes the largest finite value (IEEE 754-2019, 7.4); an infinite
  input is no rounding, so it is treated as above.
- ``saturate=True`` gives the largest finite value for every overflow and for infinite inputs
  (PTX ``.satfinite``).
- NaN stays NaN. Where the format has none: fp6 and fp4 give the largest positive value (as PTX
  ``cvt`` and ``cuda_fp6.h`` do), integers give 0 (as PTX ``cvt`` to an integer does).
- e8m0 has neither sign nor zero: zero and negative values give NaN, values below 2^-127 give
  2^-127. Half-way cases go up: with one-digit significands there is no even one, and IEEE
  754-2019, 4.3.1 then takes the larger magnitude.
- The sign of zero is kept, except by integers.

Sources: IEEE 754-2019; PTX ISA, ``cvt``; OFP8 1.0; MX 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.errors import UsageError
from gpulab.formats.row import Format
from gpulab.formats.table import get
from gpulab.formats.threads import spread

Rounding = Literal["nearest", "toward_zero"]

TABLE_BITS = 16
"""Formats up to this width decode by a table of all their codes."""

_CHUNK = 1 << 15  # elements a pass; the temporaries of a chunk stay in the L2 cache


@dataclass(frozen=True)
class _Source:
    """The type that values are encoded from.

    Args:
        word: unsigned integer of its width.
        mantissa: stored fraction bits.
        bias: of its exponent.
    """

    word: type[np.unsignedinteger[Any]]
    mantissa: int
    bias: int

    @property
    def infinity(self) -> int:
        """Its bits: the top exponent, 2 bias + 1."""
        return (2 * self.bias + 1) << self.mantissa


_SOURCES = {
    np.dtype(np.float32): _Source(np.uint32, 23, 127),
    np.dtype(np.float64): _Source(np.uint64, 52, 1023),
}


def encode(
    fmt: Format | str,
    values: ArrayLike,
    rounding: Rounding = "nearest",
    saturate: bool = False,
) -> NDArray[Any]:
    """Round float64 values to the format; see the module text for the edges.

    Args:
        fmt: a row or its name; a block format has no code of its own for a single value.
        values: any shape; float32 as it is, everything else as float64.
        rounding: ``nearest`` (ties to even) or ``toward_zero``.
        saturate: overflow and infinities become the largest finite value.

    Returns:
        Array of the same shape and of the format's storage type.

    Raises:
        UsageError: unknown format or rounding, or a block format.
    """
    row = _plain(fmt)
    if rounding not in ("nearest", "toward_zero"):
        raise UsageError(f"unknown rounding {rounding!r}", fix="use nearest or toward_zero")
    # float32 values need no wider arithmetic: what is rounded is the value itself either way.
    narrow = isinstance(values, np.ndarray) and values.dtype == np.float32
    with np.errstate(invalid="ignore"):  # signalling NaN
        source = np.ascontiguousarray(values, dtype=np.float32 if narrow else np.float64)
    shape = np.shape(values)
    codes = np.empty(source.size, dtype=_code_dtype(row))
    flat = source.reshape(-1)
    one = _encode_integer if row.is_integer else _encode_float if row.signed else _encode_scale

    def some(where: slice) -> None:
        for start in range(where.start, where.stop, _CHUNK):
            part = slice(start, min(start + _CHUNK, where.stop))
            with np.errstate(invalid="ignore"):  # signalling NaN
                one(row, flat[part], rounding == "nearest", saturate, codes[part])

    spread(some, flat.size, flat.size, _CHUNK)
    return from_codes(row, codes.reshape(shape))


def decode(fmt: Format | str, stored: ArrayLike) -> NDArray[np.float64]:
    """The exact values of stored codes, as float64.

    tf32 ignores the low 13 bits of its float32 container, as the tensor core does.

    Args:
        fmt: a row or its name.
        stored: codes in the format's storage type (float arrays for fp32, tf32 and fp16).

    Raises:
        UsageError: unknown format, a block format, or an array of another type.
    """
    row = _plain(fmt)
    array = np.asarray(stored)
    if array.dtype != row.storage:
        raise UsageError(f"{row.name} is stored as {row.storage}, got an array of {array.dtype}")
    flat = np.ascontiguousarray(array).reshape(-1)
    values = np.empty(flat.size)
    table = code_values(row) if row.bits <= TABLE_BITS else None

    def some(where: slice) -> None:
        for start in range(where.start, where.stop, _CHUNK):
            part = slice(start, min(start + _CHUNK, where.stop))
            codes = to_codes(row, flat[part])
            if table is not None:
                np.take(table, codes, out=values[part], mode="clip")  # codes are all in range
            else:
                with np.errstate(invalid="ignore"):  # signalling NaN
                    values[part] = from_codes(row, codes)

    spread(some, flat.size, flat.size, _CHUNK)
    return values.reshape(array.shape)


def to_codes(row: Format, stored: NDArray[Any]) -> NDArray[Any]:
    """The unsigned codes (``row.bits`` wide) of stored values; unused container bits drop out."""
    codes: NDArray[Any] = stored.view(_code_dtype(row))
    if row.container_shift:
        codes = codes >> codes.dtype.type(row.container_shift)
    elif row.bits < 8 * codes.itemsize:
        codes = codes & codes.dtype.type((1 << row.bits) - 1)
    return codes


def from_codes(row: Format, codes: NDArray[Any]) -> NDArray[Any]:
    """Stored values of unsigned codes (of the container's width); the inverse of ``to_codes``."""
    shifted = codes << codes.dtype.type(row.container_shift) if row.container_shift else codes
    stored: NDArray[Any] = shifted.view(row.storage)
    return stored


@cache
def code_values(row: Format) -> NDArray[np.float64]:
    """The value of every code, by code; read-only. Formats up to 16 bits only.

    Raises:
        UsageError: the format is too wide for a table.
    """
    if row.bits > TABLE_BITS:
        raise UsageError(f"{row.name} has too many codes for a table")
    codes = np.arange(1 << row.bits, dtype=np.int64)
    if row.is_integer:
        negative = codes >> row.mantissa_bits  # the sign bit; none in an unsigned integer
        values = (codes - (negative << row.bits)).astype(np.float64)
    else:
        values = _decode_float(row, codes)
    values.flags.writeable = False
    return values


def _plain(fmt: Format | str) -> Format:
    row = get(fmt) if isinstance(fmt, str) else fmt
    if row.block is not None:
        raise UsageError(
            f"{row.name} is a block format: a value has no code without its block",
            fix="use gpulab.formats.packing.quantise",
        )
    return row


def _code_dtype(row: Format) -> np.dtype[Any]:
    return np.dtype(f"u{row.storage.itemsize}")


def _decode_float(row: Format, codes: NDArray[np.int64]) -> NDArray[np.float64]:
    magnitude_bits = row.exponent_bits + row.mantissa_bits
    magnitude = codes & ((1 << magnitude_bits) - 1)
    exponent = magnitude >> row.mantissa_bits
    fraction = (magnitude & ((1 << row.mantissa_bits) - 1)) * row.eps
    if row.signed:
        values = np.ldexp(fraction + (exponent > 0), np.maximum(exponent, 1) - row.bias)
    else:
        values = np.ldexp(1.0 + fraction, exponent - row.bias)
    beyond = magnitude > row.max_code
    values[beyond] = np.nan
    if row.has_inf:
        values[beyond & (fraction == 0)] = np.inf
    signed: NDArray[np.float64] = np.copysign(values, np.where(codes >> magnitude_bits, -1.0, 1.0))
    return signed


def _encode_float(
    row: Format, values: NDArray[Any], nearest: bool, saturate: bool, out: NDArray[Any]
) -> None:
    """Round on the bit pattern: the source's exponent and its top mantissa bits, rebiased, are
    the code; values below ``min_normal`` are counted in units of ``min_subnormal`` instead."""
    source = _SOURCES[values.dtype]
    word = source.word
    bits = values.view(word)
    magnitude = bits & word((1 << 8 * word().itemsize - 1) - 1)
    dropped = source.mantissa - row.mantissa_bits
    one = word(1)
    code = magnitude >> word(dropped)
    if nearest and dropped:
        # Half of the last kept bit, less one where that bit is even: ties go to even.
        code &= one
        code += magnitude + ((one << word(dropped - 1)) - one)
        code >>= word(dropped)
    code -= word((source.bias - row.bias) << row.mantissa_bits)  # wraps where small
    small = magnitude < values.dtype.type(row.min_normal).view(word)
    if small.any():
        units = np.abs(values[small]) / values.dtype.type(
            row.min_subnormal
        )  # a power of two: exact
        code[small] = np.rint(units) if nearest else np.floor(units)
    top = word(row.max_code)
    beyond = top if saturate or not row.has_nan else top + one  # Inf, or the NaN of nan_only
    np.minimum(code, beyond if nearest else top, out=code)
    code |= (bits >> word(8 * word().itemsize - 1)) << word(row.exponent_bits + row.mantissa_bits)
    special = magnitude >= word(source.infinity)
    if special.any():
        sign_bit = code & (one << word(row.bits - 1))
        code[special] = beyond | sign_bit[special]
        code[magnitude > word(source.infinity)] = _nan_code(row)
    out[...] = code


def _nan_code(row: Format) -> int:
    """The positive quiet NaN; the largest value where there is none."""
    if row.specials == "none":
        return row.max_code
    quiet = 1 << (row.mantissa_bits - 1) if row.has_inf else 0
    return row.max_code + 1 + quiet


def _encode_scale(
    row: Format, values: NDArray[Any], nearest: bool, saturate: bool, out: NDArray[Any]
) -> None:
    fraction, exponent = np.frexp(values)  # fraction in [0.5, 1)
    code = exponent.astype(np.int64) + (row.bias - 1)
    if nearest:
        code += fraction >= 0.75
    beyond = row.max_code if saturate else _nan_code(row)
    code = np.clip(code, 0, beyond if nearest else row.max_code)
    code[np.isposinf(values)] = beyond
    code[~(values > 0)] = _nan_code(row)
    out[...] = code


def _encode_integer(
    row: Format, values: NDArray[Any], nearest: bool, saturate: bool, out: NDArray[Any]
) -> None:
    whole = np.rint(values) if nearest else np.trunc(values)
    whole = np.clip(whole, row.min_finite, row.max_finite)  # saturates in any case
    whole[np.isnan(whole)] = 0
    out[...] = whole.astype(np.int64) & ((1 << row.bits) - 1)
