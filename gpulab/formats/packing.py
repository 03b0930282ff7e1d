"""Dense storage of narrow codes, tensor-core byte containers, and block quantisation.

Packing is little-endian in bits: element 0 takes the lowest bits. So two 4-bit codes share a byte
with the first in the low half, and four 6-bit codes share three bytes.

Block quantisation: the scale is found by a rule that is named, because published
implementations differ, then every element is divided by the scale and rounded to nearest with
saturation. A block that holds a NaN or an infinity gets a NaN scale: nothing non-finite is lost.

Sources: OCP Microscaling Formats Specification 1.0, sections 5 and 6; PTX ISA 9.0, mma operand
layout for ``kind::f8f6f4`` (containers) and ``kind::mxf4nvf4`` (nvfp4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.errors import UsageError
from gpulab.formats.codec import decode, encode
from gpulab.formats.row import Block, Format
from gpulab.formats.table import get

Exponents = NDArray[np.int64]
NIBBLE = 4
"""Bits of half a byte: two codes a byte are put together without going through single bits."""


def pack(fmt: Format | str, codes: ArrayLike) -> NDArray[np.uint8]:
    """Pack codes of an 8-bit or narrower format densely along the last axis.

    Args:
        fmt: a row or its name.
        codes: (..., n) uint8 (int8 for int8), one code an element in the low bits.

    Returns:
        (..., ceil(n * bits / 8)) uint8; unused bits of the last byte are zero.

    Raises:
        UsageError: the format is wider than a byte.
    """
    row = _narrow(fmt)
    array = np.atleast_1d(np.asarray(codes)).astype(np.uint8)
    if row.bits == NIBBLE:
        halves = array[..., ::2] & np.uint8(0xF)
        halves[..., : array.shape[-1] // 2] |= array[..., 1::2] << np.uint8(NIBBLE)
        return halves
    bits = np.unpackbits(array[..., None], axis=-1, count=row.bits, bitorder="little")
    dense = bits.reshape(*array.shape[:-1], array.shape[-1] * row.bits)
    return np.packbits(dense, axis=-1, bitorder="little")


def unpack(fmt: Format | str, packed: ArrayLike, count: int) -> NDArray[np.uint8]:
    """The ``count`` codes of a last axis packed by ``pack``: (..., count) uint8.

    Raises:
        UsageError: the format is wider than a byte, or the bytes hold fewer codes.
    """
    row = _narrow(fmt)
    array = np.asarray(packed, dtype=np.uint8)
    needed = -(-count * row.bits // 8)
    if count < 0 or array.shape[-1] < needed:
        raise UsageError(f"{count} codes of {row.name} need {needed} bytes, got {array.shape[-1]}")
    if row.bits == NIBBLE:
        codes = np.empty((*array.shape[:-1], count), np.uint8)
        codes[..., ::2] = array[..., :needed] & 0xF
        codes[..., 1::2] = array[..., : count // 2] >> NIBBLE
        return codes
    bits = np.unpackbits(array, axis=-1, count=count * row.bits, bitorder="little")
    bits = bits.reshape(*array.shape[:-1], count, row.bits)
    return np.packbits(bits, axis=-1, bitorder="little")[..., 0]


def to_containers(fmt: Format | str, codes: ArrayLike) -> NDArray[np.uint8]:
    """Byte operands of ``mma.sync`` ``kind::f8f6f4``: 4-bit codes sit in bits 2 to 5, 6-bit codes
    in the low 6 bits, 8-bit codes fill the byte.

    Raises:
        UsageError: the format is wider than a byte.
    """
    return np.asarray(codes, dtype=np.uint8) << np.uint8(_container_shift(fmt))


def from_containers(fmt: Format | str, containers: ArrayLike) -> NDArray[np.uint8]:
    """The codes of ``to_containers``; bits outside a code are ignored.

    Raises:
        UsageError: the format is wider than a byte.
    """
    codes = np.asarray(containers, dtype=np.uint8) >> np.uint8(_container_shift(fmt))
    return codes & np.uint8((1 << _narrow(fmt).bits) - 1)


def _container_shift(fmt: Format | str) -> int:
    return 2 if _narrow(fmt).bits == 4 else 0


def _narrow(fmt: Format | str) -> Format:
    row = get(fmt) if isinstance(fmt, str) else fmt
    if row.bits > 8:
        raise UsageError(f"{row.name} has {row.bits} bits: nothing to pack into bytes")
    return row


def _log2(values: NDArray[np.float64] | float) -> tuple[NDArray[np.float64], Exponents]:
    """Exactly: significand in [1, 2) and floor(log2 value)."""
    fraction, exponent = np.frexp(values)
    return 2.0 * fraction, np.asarray(exponent, dtype=np.int64) - 1


def _floor(amax: NDArray[np.float64], element: Format) -> Exponents:
    """floor(log2 amax) - emax, the text of the MX specification: the largest may saturate."""
    return np.subtract(_log2(amax)[1], element.max_exponent)


def _ceil(amax: NDArray[np.float64], element: Format) -> Exponents:
    """ceil(log2 amax) - emax: never saturates, may waste one exponent."""
    return np.add(_floor(amax, element), _log2(amax)[0] > 1.0)


def _rceil(amax: NDArray[np.float64], element: Format) -> Exponents:
    """ceil(log2(amax / max_finite)): the smallest scale that does not saturate. Significand and
    exponent are compared apart, so the quotient is never rounded."""
    return np.add(_floor(amax, element), _log2(amax)[0] > _log2(element.max_finite)[0])


def _even(amax: NDArray[np.float64], element: Format) -> Exponents:
    """As floor, after rounding amax to the element's mantissa, ties to even."""
    kept = np.rint(_log2(amax)[0] / element.eps) * element.eps
    carried: NDArray[np.bool_] = kept == 2.0
    return np.add(_floor(amax, element), carried)


SCALE_RULES: dict[str, Callable[[NDArray[np.float64], Format], Exponents]] = {
    "floor": _floor,
    "ceil": _ceil,
    "rceil": _rceil,
    "even": _even,
}
"""Power-of-two scale rules by name: exponent of the scale for a block's largest magnitude."""


@dataclass(frozen=True)
class Quantised:
    """A tensor in a block format; blocks run along the last axis, the last one may be shorter.

    Args:
        format: the block format's row.
        element: row of the element format.
        codes: (..., n) element codes, one a byte.
        scales: (..., ceil(n / block)) codes of the scale format.
        tensor_scale: the further scale of the whole tensor, exact in float32; 1 without one.
        rule: name of the scale rule; ``amax`` for nvfp4.
    """

    format: Format
    element: Format
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    tensor_scale: float
    rule: str

    def dequantise(self) -> NDArray[np.float64]:
        """The stored values: element times block scale times tensor scale, in float64."""
        block = _block(self.format)
        count = self.codes.shape[-1]
        scales = decode(block.scale, self.scales) * self.tensor_scale
        wide = np.repeat(scales, block.length, axis=-1)[..., :count]
        return decode(self.element, self.codes) * wide


def quantise(
    fmt: Format | str, values: ArrayLike, rule: str | None = None, element: str | None = None
) -> Quantised:
    """Quantise float64 values to a block format along the last axis.

    nvfp4 has the one rule ``amax``: tensor scale = amax(tensor) / (6 * 448) rounded to float32,
    block scale = amax(block) / (6 * tensor scale) rounded to e4m3.

    Args:
        fmt: a block format's row or name.
        values: (..., n) float64.
        rule: ``floor``, ``ceil``, ``rceil`` (None) or ``even`` for power-of-two scales.
        element: one of the block's element formats; its first when None.

    Raises:
        UsageError: not a block format, an unknown rule, or an element it does not allow.
    """
    row = get(fmt) if isinstance(fmt, str) else fmt
    block = _block(row)
    rules = tuple(SCALE_RULES) if block.tensor_scale is None else ("amax",)
    rule = rule or ("rceil" if block.tensor_scale is None else "amax")
    if rule not in rules:
        raise UsageError(
            f"{row.name} has no scale rule {rule!r}", fix=f"use one of: {', '.join(rules)}"
        )
    name = get(element).name if element is not None else block.elements[0]
    if name not in block.elements:
        raise UsageError(
            f"{row.name} has no {name} elements", fix=f"use one of: {', '.join(block.elements)}"
        )
    part = get(name)
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    count = array.shape[-1]
    groups = -(-count // block.length)
    padding = [(0, 0)] * (array.ndim - 1) + [(0, groups * block.length - count)]
    blocks = np.pad(array, padding).reshape(*array.shape[:-1], groups, block.length)
    finite = np.where(np.isfinite(blocks), np.abs(blocks), 0.0)
    amax = finite.max(axis=-1, initial=0.0)
    tensor_scale = 1.0
    if block.tensor_scale is None:
        scales = encode(block.scale, _powers(SCALE_RULES[rule](amax, part), amax, get(block.scale)))
    else:
        tensor_scale = _tensor_scale(block, part, amax)
        scales = encode(block.scale, amax / (part.max_finite * tensor_scale), saturate=True)
    broken = ~np.isfinite(blocks).all(axis=-1)
    scales[broken] = encode(block.scale, np.nan)
    divisor = decode(block.scale, scales) * tensor_scale
    # A zero or NaN scale leaves zeros. The quotient cannot land on a midpoint unless the value
    # is one: midpoint times scale is exact in float64, so no value is rounded twice.
    usable = np.where(divisor > 0, divisor, np.inf)[..., None]
    quotient = np.where(np.isfinite(blocks), blocks, 0.0) / usable
    codes = encode(part, quotient, saturate=True)
    codes = codes.reshape(*array.shape[:-1], groups * block.length)[..., :count]
    return Quantised(row, part, np.ascontiguousarray(codes), scales, tensor_scale, rule)


def _powers(exponents: Exponents, amax: NDArray[np.float64], scale: Format) -> NDArray[np.float64]:
    """2^exponent, kept within the scale format; the smallest scale for a block of zeros."""
    lowest, highest = scale.min_normal_exponent, scale.max_exponent
    powers: NDArray[np.float64] = np.ldexp(
        1.0, np.where(amax > 0, np.clip(exponents, lowest, highest), lowest)
    )
    return powers


def _tensor_scale(block: Block, element: Format, amax: NDArray[np.float64]) -> float:
    largest = float(amax.max(initial=0.0))
    if largest == 0.0 or block.tensor_scale is None:
        return 1.0
    whole = get(block.tensor_scale)
    wanted = largest / (element.max_finite * get(block.scale).max_finite)
    return max(float(decode(whole, encode(whole, wanted, saturate=True))), whole.min_subnormal)


def _block(row: Format) -> Block:
    if row.block is None:
        raise UsageError(f"{row.name} is not a block format", fix="use gpulab.formats.encode")
    return row.block
