"""Codes to significands and exponents, for whole arrays at once.

A tensor core aligns products by the exponents of their operands *as stored*: a subnormal keeps
the format's smallest exponent, and a product in [2, 4) keeps the sum of its operands' exponents.
So every operand is needed twice: as a value (the product is exact) and as that exponent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import FORMATS, Format
from gpulab.formats import get as get_format

F32_MANTISSA = 23
F32_BIAS = 127
DEAD_NARROW = -64  # exponent of a zero where exponents are int8: below every sum of live ones
DEAD_WIDE = -4096  # the same for int16
_NARROW_LIMIT = 31  # |exponent| up to here lets the sum of two, or one and DEAD_NARROW, fit int8

_UNSIGNED_INT8 = replace(
    FORMATS["int8"], name="uint8", ptx="u8", mantissa_bits=8, specials="unsigned"
)


def operand_format(ptx: str) -> Format:
    """The row of a PTX operand type such as ``f16``, ``tf32``, ``e4m3``, ``u8``."""
    return _UNSIGNED_INT8 if ptx == "u8" else get_format(ptx)


def as_codes(array: Any, row: Format, what: str) -> NDArray[Any]:
    """The array's raw bits as unsigned integers; arrays of the storage type are reinterpreted.

    Raises:
        UsageError: the element size is not that of the format's codes.
    """
    bits = np.asarray(array)
    if bits.dtype.kind not in "uif" or bits.dtype.itemsize != row.storage.itemsize:
        raise UsageError(
            f"{what} holds {row.name} codes of {8 * row.storage.itemsize} bits, "
            f"got an array of {bits.dtype}",
            fix=f"pass the raw codes as uint{8 * row.storage.itemsize}",
        )
    return bits.view(f"u{row.storage.itemsize}")


@dataclass(frozen=True)
class Operand:
    """Decoded operands.

    Args:
        values: float32, exact; zero where the code is Inf or NaN.
        exponents: int8 or int16, of the code as stored; DEAD_NARROW or DEAD_WIDE for zeros.
        raw: the same as ``values`` with Inf and NaN in place, or None where there are none.
    """

    values: NDArray[np.float32]
    exponents: NDArray[Any]
    raw: NDArray[np.float32] | None

    @property
    def narrow(self) -> bool:
        """Whether the exponents are int8."""
        return self.exponents.dtype.itemsize == 1

    def part(self, k: slice) -> Operand:
        """The operands of a range of k (axis 0)."""
        raw = None if self.raw is None else self.raw[k]
        return Operand(self.values[k], self.exponents[k], raw)

    def rows(self, m: slice) -> Operand:
        """The operands of a range of rows (axis 1)."""
        raw = None if self.raw is None else self.raw[:, m]
        return Operand(self.values[:, m], self.exponents[:, m], raw)


def decode_operand(codes: NDArray[Any], row: Format, widen: Format | None = None) -> Operand:
    """Decode floating-point codes.

    Args:
        codes: unsigned integers, any shape, as ``as_codes`` gives them.
        row: their format.
        widen: take the exponents of this wider format, to which the values are converted first.
    """
    kind = codes.dtype.type
    if row.name == "tf32":
        codes = codes >> kind(F32_MANTISSA - row.mantissa_bits)  # the low bits are not read
    magnitude = codes & kind((1 << (row.exponent_bits + row.mantissa_bits)) - 1)
    values = _values(codes, row)
    raw: NDArray[np.float32] | None = None
    if magnitude.size and magnitude.max() > row.max_code:
        special = magnitude > kind(row.max_code)
        raw = values.copy()
        raw[special] = np.nan
        if row.has_inf:
            infinite = magnitude == kind(row.max_code + 1)
            raw[infinite] = np.copysign(np.float32(np.inf), values[infinite])
        values[special] = 0
        magnitude[special] = 0  # its exponent would send the block to the wide carrier
    if widen is not None:
        return Operand(values, _exponents_of(values, widen), raw)
    narrow = row.bias <= _NARROW_LIMIT and row.max_exponent <= _NARROW_LIMIT
    exponents = (magnitude >> kind(row.mantissa_bits)).astype(np.int8 if narrow else np.int16)
    np.maximum(exponents, 1, out=exponents)
    exponents -= exponents.dtype.type(row.bias)
    np.putmask(exponents, magnitude == 0, DEAD_NARROW if narrow else DEAD_WIDE)
    return Operand(values, exponents, raw)


def _values(codes: NDArray[Any], row: Format) -> NDArray[np.float32]:
    """Put the fields where float32 has them, then move the exponent by a power of two.

    The sign, at the top of its container, is copied down by the conversion to int32; the mask
    leaves it in bit 31 only.
    """
    width = 8 * codes.dtype.itemsize
    pad = width - row.bits
    if pad:
        codes = codes << codes.dtype.type(pad)
    fields = ((1 << (row.exponent_bits + row.mantissa_bits)) - 1) << (
        F32_MANTISSA - row.mantissa_bits
    )
    bits = codes.view(f"i{codes.dtype.itemsize}").astype(np.int32)
    shift = F32_MANTISSA - row.mantissa_bits - pad
    if shift:
        np.left_shift(bits, np.int32(shift), out=bits)
    bits &= np.int32(fields - (1 << 31))
    values = bits.view(np.float32)
    if row.bias != F32_BIAS:
        values *= np.float32(2.0 ** (F32_BIAS - row.bias))
    return values


def _exponents_of(values: NDArray[np.float32], row: Format) -> NDArray[Any]:
    """Exponents that float32 values have as codes of ``row`` (which holds them exactly)."""
    field = values.view(np.int32) >> np.int32(F32_MANTISSA)
    field &= np.int32(0xFF)
    field -= np.int32(F32_BIAS)
    exponents = field.astype(np.int8)
    np.maximum(exponents, row.min_normal_exponent, out=exponents)
    np.putmask(exponents, values == 0, DEAD_NARROW)
    return exponents
