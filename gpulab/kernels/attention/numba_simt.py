"""Attention in Numba: a warp for one query, tiles of 32 keys, the online softmax of the raw kernel.

For scores a lane owns a key, for the output it owns columns. Everything inside is float32; bf16
arrives and leaves as codes and is converted by integer operations, which works on every card.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpulab.kernels.attention.problem import blocks, limits, params
from gpulab.kernels.attention.simt import KEYS, VARIANTS
from gpulab.registry import Capability, Dims, KernelSpec, LaunchPlan, NumbaBuild, Variant, register

Function = Callable[..., Any]

WARPS = 4
"""Queries a block, one a warp."""


def _conversions(fmt: str) -> tuple[Function, Function]:
    """From a stored element to float32, and back with one rounding to nearest even."""
    from numba import float32, int32, uint16, uint32
    from numba.cuda import libdevice
    from numba.cuda.types import float16

    def plain(x: Any) -> Any:
        return float32(x)

    def half(x: Any) -> Any:
        return float16(x)

    def from_bf16(code: Any) -> Any:
        return libdevice.int_as_float(int32(int32(code) << int32(16)))

    def to_bf16(x: Any) -> Any:
        bits = uint32(libdevice.float_as_int(x))
        rounded = uint32(bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1)))
        kept = rounded if x == x else uint32(0x7FFF0000)
        return uint16(kept >> uint32(16))

    return {"fp32": (plain, plain), "fp16": (plain, half), "bf16": (from_bf16, to_bf16)}[fmt]


def _make(variant: Variant, head_dim: int) -> Function:
    """The kernel for one variant and head dim, over arrays of stored codes."""
    from numba import cuda, float32, int32
    from numba.cuda import libdevice

    # Inlined before typing: a device function on its own would be compiled for the current card,
    # and there may be none.
    inline = cuda.jit(device=True, inline="always")
    load, store = (inline(each) for each in _conversions(variant.format))
    columns, pitch, keys, warps = (head_dim + 31) // 32, head_dim | 1, KEYS, WARPS
    scale, log2_e = np.float32(1.0 / np.sqrt(head_dim)), np.float32(np.log2(np.e))
    nothing, everyone = np.float32(-np.inf), 0xFFFFFFFF
    zero, one = np.float32(0.0), np.float32(1.0)

    def attention_simt(
        q: Any, k: Any, v: Any, bias: Any, mask: Any, out: Any, lse: Any,
        batch: Any, heads: Any, kv_heads: Any, seq_q: Any, seq_k: Any,
        causal: Any, window: Any, bias_planes: Any, mask_planes: Any,
    ) -> None:  # fmt: skip
        tile = cuda.shared.array((keys, pitch), float32)
        queries = cuda.shared.array((warps, head_dim), float32)
        total = cuda.local.array(columns, float32)
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread % 32, thread // 32
        blocks_a_head = (seq_q + warps - 1) // warps
        number = int32(cuda.blockIdx.x) // blocks_a_head
        block_first = (int32(cuda.blockIdx.x) - number * blocks_a_head) * warps
        entry = number // heads
        head = number - entry * heads
        kv = head // (heads // kv_heads)
        row = min(block_first + warp, seq_q - 1)  # a warp without a query repeats the last

        # Keys that the query sees, and that any query of the block sees.
        position = row + seq_k - seq_q
        first, last = int32(0), seq_k
        begin, end = int32(0), seq_k
        lowest = block_first + seq_k - seq_q
        highest = min(block_first + warps, seq_q) - 1 + seq_k - seq_q
        if window > 0:
            first = max(first, position - window + 1)
            last = min(last, position + window)
            begin = max(begin, lowest - window + 1)
            end = min(end, highest + window)
        if causal != 0:
            last = min(last, position + 1)
            end = min(end, highest + 1)
        begin = begin // keys * keys

        for d in range(lane, head_dim, 32):
            queries[warp, d] = load(q[entry, head, row, d]) * scale
        for c in range(columns):
            total[c] = zero
        largest, summed = nothing, zero

        for key in range(begin, end, keys):
            cuda.syncthreads()
            for i in range(thread, keys * head_dim, 32 * warps):
                j = i // head_dim
                d = i - j * head_dim
                inside = key + j < seq_k
                tile[j, d] = load(k[entry, kv, key + j, d]) if inside else zero
            cuda.syncthreads()
            x = zero
            for d in range(head_dim):
                x = cuda.fma(queries[warp, d], tile[lane, d], x)
            mine = key + lane
            seen = mine >= first and mine < last
            if seen and bias_planes > 0:
                x = x + bias[head if bias_planes > 1 else 0, row, mine]
            if seen and mask_planes > 0:
                seen = mask[entry if mask_planes > 1 else 0, row, mine] != 0
            x = x if seen else nothing
            top = x
            step = 1
            while step < 32:
                top = max(top, cuda.shfl_xor_sync(everyone, top, step))
                step *= 2
            top = max(largest, top)
            base = zero if top == nothing else top
            factor = libdevice.exp2f((largest - base) * log2_e)
            p = libdevice.exp2f((x - base) * log2_e)
            part = p
            step = 1
            while step < 32:
                part = part + cuda.shfl_xor_sync(everyone, part, step)
                step *= 2
            summed = cuda.fma(summed, factor, part)
            largest = top
            for c in range(columns):
                total[c] = total[c] * factor
            cuda.syncthreads()
            for i in range(thread, keys * head_dim, 32 * warps):
                j = i // head_dim
                d = i - j * head_dim
                inside = key + j < seq_k
                tile[j, d] = load(v[entry, kv, key + j, d]) if inside else zero
            cuda.syncthreads()
            for j in range(keys):
                of_key = cuda.shfl_sync(everyone, p, j)
                for c in range(columns):
                    d = lane + 32 * c
                    if d < head_dim:
                        total[c] = cuda.fma(of_key, tile[j, d], total[c])

        if block_first + warp < seq_q:
            if lane == 0:
                lse[entry, head, row] = largest + libdevice.logf(summed)
            share = zero if summed == zero else one / summed
            for c in range(columns):
                d = lane + 32 * c
                if d < head_dim:
                    out[entry, head, row, d] = store(total[c] * share)

    return attention_simt


def _build(variant: Variant, capability: Capability, dims: Dims) -> NumbaBuild:
    head_dim = dims["head_dim"]
    key = f"attention_simt_{variant.format}_{head_dim}"
    return NumbaBuild(partial(_make, variant, head_dim), key)


def _plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    return LaunchPlan((blocks(dims, WARPS), 1, 1), (32 * WARPS, 1, 1))


def _supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    return limits(variant, capability, dims, WARPS)


register(
    KernelSpec(
        op="attention",
        name="simt",
        backend="numba",
        idea="the online softmax in Python, a warp for one query",
        order=20,
        variants=VARIANTS,
        params=params,
        build=_build,
        plan=_plan,
        supports=_supports,
        source="Milakov and Gimelshein, arXiv 1805.02867",
    )
)
