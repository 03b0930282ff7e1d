"""Tensor-core arithmetic, bit for bit: ``D = A B + C`` on raw codes.

A tensor core does not round like IEEE additions. It multiplies exactly, aligns all terms of a
block to the largest exponent, cuts them toward zero to a few fraction bits, adds the integers and
rounds once. Block length, fraction bits and rounding differ by instruction and capability;
``model`` says which and on what evidence.

>>> import numpy as np
>>> one = np.ones((1, 16), np.float16).view(np.uint16)
>>> d = mma(one, one.reshape(16, 1), np.zeros((1, 1), np.uint32),
...         "mma.sync.m16n8k16.f32.f16.f16.f32", (9, 0))
>>> float(d.view(np.float32)[0, 0])
16.0

Sources: see ``gpulab/numerics/_parameters.py``.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.errors import UsageError
from gpulab.formats import FORMATS
from gpulab.numerics._blockscale import scaled_block
from gpulab.numerics._fdpa import F32_NAN, PASS, Rule, Workspace, dot_add
from gpulab.numerics._forms import DotModel, available, depth, is_modelled, model
from gpulab.numerics._integer import integer
from gpulab.numerics._operands import Operand, as_codes, decode_operand, operand_format
from gpulab.numerics._parameters import CAPABILITIES, Capability
from gpulab.numerics._results import half_codes, to_half

__all__ = [
    "CAPABILITIES",
    "DotModel",
    "available",
    "depth",
    "evaluate",
    "is_modelled",
    "mma",
    "mma_batch",
    "mma_block_scaled",
    "model",
]

_LOCAL = threading.local()
_BATCH = 512  # warps a pass: long enough rows for NumPy, temporaries that stay in the L2 cache


def mma(
    a_bits: ArrayLike,
    b_bits: ArrayLike,
    c_bits: ArrayLike,
    instruction: str,
    capability: Capability,
) -> NDArray[Any]:
    """``D = A B + C`` as the instruction computes it on a card of the capability.

    Args:
        a_bits: codes (..., M, K): uint8 for fp8, fp6, fp4 (the code in the low bits) and int8,
            uint16 for fp16 and bf16, uint32 (float32 bits) for tf32. Arrays of the storage type
            itself (float16, float32, int8) are taken as their bits.
        b_bits: codes (..., K, N).
        c_bits: (..., M, N): float32 bits as uint32, float16 bits as uint16, or int32 as uint32.
        instruction: PTX spelling; M and N of the name need not be those of the arrays. K must
            be a multiple of the instruction's: further instructions are chained, k ascending,
            each adding to the result of the one before.
        capability: for example ``(9, 0)``.

    Returns:
        Codes (..., M, N) of the type of C, leading axes broadcast.

    Raises:
        UsageError: shapes or types do not fit, or no such instruction on the capability.
    """
    return evaluate(model(instruction, capability), a_bits, b_bits, c_bits)


def mma_batch(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], instruction: str, capability: Capability
) -> NDArray[Any]:
    """``mma`` for W warps at once: (W, M, K), (W, K, N), (W, M, N) codes.

    Arrays whose memory has the warps last (strided views) are read without a copy in that order,
    which is the order this module computes in.
    """
    return evaluate(model(instruction, capability), a, b, c)


def evaluate(
    rules: DotModel, a_bits: ArrayLike, b_bits: ArrayLike, c_bits: ArrayLike
) -> NDArray[Any]:
    """``mma`` by an explicit model.

    ``dataclasses.replace(model(...), fraction_bits=24)`` shows what another F, ``block`` or
    ``result`` (``rne_f32`` for ``rz_f32``, ``rz_f16`` for ``rne_f16``) would have given.

    Raises:
        UsageError: as ``mma``, or the model needs block scales.
    """
    if rules.scale_type is not None:
        raise UsageError(
            f"{rules.instruction} needs block scales", fix="call mma_block_scaled with them"
        )
    return _evaluate(rules, a_bits, b_bits, c_bits, None)


def mma_block_scaled(
    a_bits: ArrayLike,
    b_bits: ArrayLike,
    c_bits: ArrayLike,
    scale_a: ArrayLike,
    scale_b: ArrayLike,
    instruction: str,
    capability: Capability,
) -> NDArray[Any]:
    """``mma`` with block scales: ``D = (A scale_a) (scale_b B) + C``.

    Args:
        a_bits: as in ``mma``; fp4 codes one a byte, in the low bits.
        b_bits: likewise.
        c_bits: likewise.
        scale_a: uint8 codes (..., M, K / V), V products to a scale (``model(...).scale_block``).
        scale_b: uint8 codes (..., K / V, N).
        instruction: for example ``mma.sync.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.``
            ``f32.e2m1.e2m1.f32.ue4m3``.
        capability: ``(12, 0)``; no hardware data confirms this model.

    Raises:
        UsageError: as ``mma``, or the instruction takes no scales.
    """
    rules = model(instruction, capability)
    if rules.scale_type is None:
        raise UsageError(f"{instruction} takes no block scales", fix="call mma")
    return _evaluate(rules, a_bits, b_bits, c_bits, (scale_a, scale_b))


def _evaluate(
    rules: DotModel,
    a_bits: ArrayLike,
    b_bits: ArrayLike,
    c_bits: ArrayLike,
    scales: tuple[ArrayLike, ArrayLike] | None,
) -> NDArray[Any]:
    a = as_codes(a_bits, operand_format(rules.a_type), "A")
    b = as_codes(b_bits, operand_format(rules.b_type), "B")
    c = as_codes(c_bits, FORMATS["fp16" if rules.d_type == "f16" else "fp32"], "C")
    batch, (m, n, k) = _shape(rules, a, b, c)
    a = np.broadcast_to(a, (*batch, m, k)).reshape(-1, m, k)
    b = np.broadcast_to(b, (*batch, k, n)).reshape(-1, k, n)
    c = np.broadcast_to(c, (*batch, m, n)).reshape(-1, m, n)
    sa, sb = _scales(rules, scales, batch, (m, n, k))
    d = np.empty(c.shape, dtype=c.dtype)
    step = max(1, min(_BATCH, 4 * PASS // max(1, m * n)))
    rows = max(1, PASS // max(1, n * min(step, len(c))))
    work = _workspace()
    for start in range(0, len(c), step):
        part = slice(start, start + step)
        if rules.result == "int32":
            d[part] = integer(rules, a[part], b[part], c[part])
            continue
        left = _decode(rules, a[part].transpose(2, 1, 0), rules.a_type)
        right = _decode(rules, b[part].transpose(1, 2, 0), rules.b_type)
        addend = np.ascontiguousarray(c[part].transpose(1, 2, 0))
        for row in range(0, m, rows):
            band = slice(row, row + rows)
            if sa is None or sb is None:
                done = _chain(rules, left.rows(band), right, addend[band], work)
            else:
                own = sa[part, band].transpose(2, 1, 0), sb[part].transpose(1, 2, 0)
                done = _chain_scaled(rules, left.rows(band), right, addend[band], own)
            d[part, band] = done.transpose(2, 0, 1)
    return d.reshape(*batch, m, n)


def _scales(
    rules: DotModel,
    scales: tuple[ArrayLike, ArrayLike] | None,
    batch: tuple[int, ...],
    dims: tuple[int, int, int],
) -> tuple[NDArray[np.uint8] | None, NDArray[np.uint8] | None]:
    """Scale codes (batch, M, K / V) and (batch, K / V, N)."""
    if scales is None:
        return None, None
    m, n, k = dims
    blocks = k // rules.scale_block
    found = []
    for what, codes, shape in zip("AB", scales, ((m, blocks), (blocks, n)), strict=True):
        bits = as_codes(codes, FORMATS["e8m0"], f"the scale of {what}")
        if bits.shape[-2:] != shape:
            raise UsageError(
                f"the scale of {what} has shape {bits.shape}, not (..., {shape[0]}, {shape[1]})",
                fix=f"pass one scale for every {rules.scale_block} products",
            )
        found.append(np.broadcast_to(bits, (*batch, *shape)).reshape(-1, *shape))
    return found[0], found[1]


def _workspace() -> Workspace:
    """This thread's temporaries, kept between calls: about 1 MB."""
    work = getattr(_LOCAL, "work", None)
    if work is None:
        work = _LOCAL.work = Workspace()
    return work


def _shape(
    rules: DotModel, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]
) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """Batch shape and (M, N, K)."""
    fits = min(a.ndim, b.ndim, c.ndim) >= 2
    fits = fits and a.shape[-1] == b.shape[-2] and c.shape[-2:] == (a.shape[-2], b.shape[-1])
    if not fits:
        raise UsageError(
            f"A {a.shape}, B {b.shape}, C {c.shape} do not multiply",
            fix="pass (..., M, K), (..., K, N) and (..., M, N)",
        )
    k = a.shape[-1]
    if k == 0 or k % rules.k:
        raise UsageError(
            f"K = {k} is not a multiple of the K of {rules.instruction}, {rules.k}",
            fix="pad K with zero codes",
        )
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2])
    except ValueError as error:
        raise UsageError(f"leading axes do not broadcast: {error}") from error
    return batch, (a.shape[-2], b.shape[-1], k)


def _decode(rules: DotModel, codes: NDArray[Any], ptx: str) -> Operand:
    """Operands (K, M or N, batch), in the order of k in which the blocks take them."""
    widen = None
    if rules.route == "through_fp16":
        depth, *rest = codes.shape
        fours = codes.reshape(depth // rules.k, rules.k // 4, 2, 2, *rest)
        codes = np.moveaxis(fours, 2, 1).reshape(codes.shape)
        widen = FORMATS["fp16"]
    return decode_operand(np.ascontiguousarray(codes), operand_format(ptx), widen)


def _chain(
    rules: DotModel, a: Operand, b: Operand, c: NDArray[Any], work: Workspace
) -> NDArray[Any]:
    """All blocks of all instructions, for codes C (m, n, batch)."""
    rule = Rule(rules.fraction_bits, rules.result)
    value: NDArray[np.float32] = c.view(np.float32) if not rule.half else _widened(c)
    for start in range(0, a.values.shape[0], rules.k):
        total = np.zeros_like(value) if rules.route == "through_fp16" else value
        for first in range(start, start + rules.k, rules.block):
            k = slice(first, min(first + rules.block, start + rules.k))
            total = dot_add(a.part(k), b.part(k), total, rule, work)
        value = _add(total, value, rule) if rules.route == "through_fp16" else total
    return half_codes(value) if rule.half else value.view(np.uint32)


def _chain_scaled(
    rules: DotModel,
    a: Operand,
    b: Operand,
    c: NDArray[Any],
    scales: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> NDArray[Any]:
    """All instructions of a block-scaled product, for codes C (m, n, batch)."""
    value: NDArray[np.float32] = c.view(np.float32)
    for first in range(0, a.values.shape[0], rules.k):
        k = slice(first, first + rules.k)
        own = slice(first // rules.scale_block, (first + rules.k) // rules.scale_block)
        value = scaled_block(rules, a.part(k), b.part(k), value, scales[0][own], scales[1][own])
    return value.view(np.uint32)


def _widened(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    decoded = decode_operand(codes, FORMATS["fp16"])
    return decoded.values if decoded.raw is None else decoded.raw


def _add(total: NDArray[np.float32], c: NDArray[np.float32], rule: Rule) -> NDArray[np.float32]:
    """One addition, correctly rounded to nearest, with canonical NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        out = to_half(total.astype(np.float64) + c, nearest=True) if rule.half else total + c
    nan = np.isnan(out)
    if nan.any():
        out.view(np.uint32)[nan] = F32_NAN
    return out
