"""Digests of output bits, which hold the emulated device to the bits of a card.

A digest line is recorded on a card and committed; a test computes the same line on the emulated
device and compares the two. Inputs are hashed too, so that different inputs are never mistaken for
different arithmetic.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab import arch, ops, registry
from gpulab.kernels.row_shape import CLUSTERS
from gpulab.lab.compiling import compile_ahead
from gpulab.lab.runner import KernelRunner
from gpulab.registry import Case, NumbaBuild, RawBuild
from gpulab.runtime.device import Device

MATMUL_SIZES: tuple[dict[str, int], ...] = (
    {"m": 1, "n": 1, "k": 1},
    {"m": 17, "n": 33, "k": 65},
    {"m": 64, "n": 64, "k": 64},
    {"m": 130, "n": 70, "k": 200},
    {"m": 96, "n": 257, "k": 48},
)
"""Tails in every dim, one element, whole tiles, more than one tile, an odd row length."""

ALIGNED_SIZES: tuple[dict[str, int], ...] = (
    {"m": 70, "n": 144, "k": 208},
    {"m": 300, "n": 528, "k": 96},
)
"""Additional sizes for kernels whose rows must be multiples of 16 bytes: tails of tiles, many
tiles."""

ROW_SIZES: tuple[dict[str, int], ...] = (
    {"rows": 1, "cols": 1},
    {"rows": 5, "cols": 257},
    {"rows": 3, "cols": 1000},
    {"rows": 2, "cols": 4096},
    {"rows": 1, "cols": 40000},
    {"rows": 9, "cols": 300},
)
"""One element, odd rows, rows that fit into registers and rows that do not, rows on which lessons
show."""

LONG_ROWS: tuple[dict[str, int], ...] = (
    {"rows": 2, "cols": 131072},
    {"rows": 1, "cols": 128256},
)
"""Additional sizes for kernels that take long rows another way, from a source of their own or by
clusters: rows that fill it, and rows that do not."""


def _attention(**dims: int) -> dict[str, int]:
    plain = {
        "batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 33, "seq_k": 65, "head_dim": 64,
        "causal": 0, "window": 0, "bias_planes": 0, "mask_planes": 0,
    }  # fmt: skip
    return plain | dims


ATTENTION_SIZES: tuple[dict[str, int], ...] = (
    _attention(),
    _attention(causal=1, seq_q=70, seq_k=130, head_dim=128),
    _attention(window=20, causal=1, head_dim=80, mask_planes=1, bias_planes=1),
)
"""Tails, grouped heads, causal, window, bias and mask, three head dims."""

SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "matmul": MATMUL_SIZES,
    **dict.fromkeys(("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy"), ROW_SIZES),
    "attention": ATTENTION_SIZES,
}
"""Sizes by op."""


def sizes_of(case: Case, sizes: Sequence[Mapping[str, int]]) -> tuple[Mapping[str, int], ...]:
    """The sizes at which a kernel's digests are taken."""
    further = ALIGNED_SIZES if case.spec.only_capability else ()
    return (*sizes, *further, *(LONG_ROWS if _has_long_rows(case) else ()))


def _has_long_rows(case: Case) -> bool:
    """Whether long rows use another source than short ones, or clusters, where a card has them."""
    build = case.spec.build
    dims = [p.name for p in case.spec.params(case.variant) if p.role == "dim"]
    if build is None or dims != ["rows", "cols"]:
        return False
    ways = {
        (code.source, code.defines) if isinstance(code, RawBuild) else code.cluster
        for size in (ROW_SIZES[0], LONG_ROWS[0])
        if isinstance(code := build(case.variant, CLUSTERS, size), RawBuild | NumbaBuild)
    }
    return len(ways) > 1


def digest(array: NDArray[Any]) -> str:
    """SHA-256 of the raw bytes, first 16 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def digests(
    device: Device,
    op: str,
    sizes: Sequence[Mapping[str, int]],
    seed: int = 0,
    *,
    known: Container[str] = (),
) -> Iterator[dict[str, Any]]:
    """One line for each kernel, variant and size that ``device`` (with its target) can run.

    Args:
        device: where they run.
        op: the operation.
        sizes: dims; kernels with additional sizes are run at those as well.
        seed: of the inputs.
        known: ``run_of`` of the runs to leave out.

    Yields:
        ``digest_line`` of every run. Library rows, which only a card runs, are left out.
    """
    runs = [
        (c, dims)
        for c in registry.cases(op)
        if c.spec.backend != "library"
        for dims in sizes_of(c, sizes)
        if c.refusal(device.target, device.kind, dims) is None
        and run_of(_run(c, device, dims, seed)) not in known
    ]
    for dims in (*sizes, *ALIGNED_SIZES, *LONG_ROWS):
        compile_ahead([c for c, mine in runs if mine is dims], device, dims)
    for case, dims in runs:
        yield digest_line(case, device, dims, seed)


def run_of(line: Mapping[str, Any]) -> str:
    """The identity of a digest line's run: kernel, formats, contract, target, size and seed."""
    return json.dumps([line.get(name, "") for name in _RUN], sort_keys=True)


_RUN = (
    "op", "kernel", "backend", "format", "accumulator", "output", "contract", "target",
    "dims", "seed",
)  # fmt: skip


def _run(case: Case, device: Device, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    v = case.variant
    return {
        "schema": 1,
        "op": case.spec.op,
        "kernel": case.spec.name,
        "backend": case.spec.backend,
        "format": v.format,
        "accumulator": v.accumulator,
        "output": v.output,
        "contract": v.contract,
        "target": arch.dotted(device.target),
        "dims": dict(dims),
        "seed": seed,
    }


def digest_line(case: Case, device: Device, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Run once and hash: the identity of the run, ``input_digest`` and ``output_digest``."""
    inputs = ops.get(case.spec.op).digest_inputs(case.variant, dims, seed)
    result = KernelRunner(case, device, dims)(inputs)
    return _run(case, device, dims, seed) | {
        "input_digest": digest(np.concatenate([a.view(np.uint8).ravel() for a in inputs.values()])),
        "output_digest": digest(
            np.concatenate([a.view(np.uint8).ravel() for a in result.outputs.values()])
        ),
    }
