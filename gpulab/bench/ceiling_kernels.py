"""The kernels that measure ceilings: what they compute, at what size, and what must come out.

Every one of them has a result that is known exactly and depends on every piece of the work that
is counted, so that a loop that did nothing, or less, cannot give a rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import Format, Path, encode, get
from gpulab.formats.packing import to_containers
from gpulab.registry import Capability, LaunchPlan, Param, RawBuild

MMA_FORMATS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "int8", "e2m1")
"""What ``ptx/mma.cuh`` multiplies, and the order of the report."""
WGMMA_FORMATS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "int8")
"""What ``ptx/wgmma.cuh`` multiplies."""

MMA_WARPS, MMA_TILE, MMA_K_BYTES = 8, (64, 32), 32
WGMMA_GROUPS, WGMMA_TILE, WGMMA_K_BYTES = 2, (64, 256), 128
FMA_THREADS, FMA_CHAINS = 256, 16
MEMORY_THREADS, PIECE_BYTES = 256, 16
ACCESSES = {"read": (4, 2, 8), "copy": (1, 2, 4)}
"""Accesses of a thread that are on their way together. The first is the ceiling's."""
BLOCKS_AN_SM = {"mma.sync": 1, "wgmma": 1, "fma": 4, "read": 8}
"""Blocks a multiprocessor is given: enough independent work to hide every latency."""

_EXACT_BITS = {"int32": 31, "fp32": 24, "fp16": 11}
_FP8_EXACT_BITS = 13
"""Fraction bits that the narrowest fp8 accumulator keeps (``numerics.tensorcore``)."""
_RANDOM_BYTES = 64 << 20


@dataclass(frozen=True)
class Size:
    """How much one launch does.

    Args:
        multiprocessors: blocks are so many times what one of them holds.
        pairs: additions of both products (of multiply-adds) to each sum.
        memory_bytes: that are read, or copied; a multiple of 16 KiB times the multiprocessors.
    """

    multiprocessors: int
    pairs: int
    memory_bytes: int


@dataclass(frozen=True)
class Work:
    """One launch, ready to be uploaded.

    Args:
        plan: launch shape.
        inputs: arrays by parameter name.
        dims: ``dim`` parameters by name.
        right: what the output must be, exactly.
        multiply_adds: counted; 0 where bytes are.
        moved_bytes: read and written; 0 where products are counted.
    """

    plan: LaunchPlan
    inputs: dict[str, NDArray[Any]]
    dims: dict[str, int]
    right: NDArray[Any]
    multiply_adds: int = 0
    moved_bytes: int = 0


@dataclass(frozen=True)
class Ceiling:
    """One limit of a card.

    Args:
        kind: ``mma.sync``, ``wgmma``, ``fma``, ``read``, ``copy``.
        format: of the operands; ``bytes`` for memory.
        accumulator: of the sums; empty for memory.
        instruction: what is issued, or None.
        build: what to compile.
        params: of the device function; its last array is the output.
        work: the launch of a size.
        accesses: of a thread that are on their way together, where memory is accessed.
    """

    kind: str
    format: str
    accumulator: str
    instruction: str | None
    build: RawBuild
    params: tuple[Param, ...]
    work: Callable[[Size], Work]
    accesses: int = 0

    @property
    def label(self) -> str:
        """``mma.sync bf16``; the accumulator is named where it is not the usual one."""
        usual = self.accumulator in ("", "fp32", "int32")
        return f"{self.kind} {self.format}" + ("" if usual else f", {self.accumulator} acc")


def of_capability(capability: Capability) -> list[Ceiling]:
    """What a card of this capability can be measured by, in the order of the report."""
    found = []
    for name in MMA_FORMATS:
        if (path := get(name).path("mma.sync", capability)) is not None:
            found.append(_mma(get(name), path, "int32" if get(name).is_integer else "fp32"))
            if name == "fp16":
                found.append(_mma(get(name), path, "fp16"))
    for name in WGMMA_FORMATS:
        if (path := get(name).path("wgmma", capability)) is not None:
            found.append(_wgmma(get(name), path))
    return [*found, _fma(), *(memory(kind)[0] for kind in ACCESSES)]


def memory(kind: str) -> tuple[Ceiling, ...]:
    """All ways to ``read`` or to ``copy``."""
    make = {"read": _read, "copy": _copy}[kind]
    return tuple(make(accesses) for accesses in ACCESSES[kind])


def amplitude(row: Format, accumulator: str, k: int, pairs: int) -> int:
    """The largest odd integer with all bits set that operands may have: sums stay exact.

    Raises:
        ValueError: not even ones do.
    """
    if accumulator == "fp32" and row.bits == 8:
        limit = 1 << _FP8_EXACT_BITS
    else:
        limit = 1 << _EXACT_BITS[accumulator]
    widest = row.mantissa_bits if row.is_integer else row.mantissa_bits + 1
    for bits in range(widest, 0, -1):
        if (k - 1) * ((1 << bits) - 1) ** 2 + 1 + pairs < limit:
            return (1 << bits) - 1
    raise ValueError(f"{pairs} pairs of {k} terms in {row.name} exceed its exact sums")


def operands(
    row: Format, accumulator: str, rows: int, columns: int, k: int, pairs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A (rows, k) and two B (columns, k) of odd integers with A B1 + A B2 = 1 everywhere."""
    rng = np.random.Generator(np.random.PCG64(k))
    most = amplitude(row, accumulator, k, pairs)
    a, b1 = (
        (2 * rng.integers(0, most + 1, (lines, k)) - most).astype(np.float64)
        for lines in (rows, columns)
    )
    a[:, 0] = b1[:, 0] = 1.0
    b2 = -b1
    b2[:, 0] = 0.0
    return a, b1, b2


def _product(
    row: Format,
    accumulator: str,
    tile: tuple[int, int],
    k_bytes: int,
    holders: int,
    pairs: int,
) -> tuple[dict[str, NDArray[Any]], NDArray[Any], int]:
    """Operands, the right sums (holders, *tile), and how many multiply-adds that takes."""
    k = k_bytes // row.storage.itemsize
    values = operands(row, accumulator, *tile, k, pairs)
    stored = [encode(row, x) for x in values]
    if row.bits < 8:
        stored = [to_containers(row, x) for x in stored]
    one = pairs + values[0] @ values[1].T
    output = np.dtype(np.int32) if accumulator == "int32" else np.dtype(np.float32)
    right = np.broadcast_to(one.astype(output), (holders, *tile))
    count = holders * (2 * pairs + 1) * tile[0] * tile[1] * k
    return dict(zip(("a", "b1", "b2"), stored, strict=True)), right, count


def _params(row: Format, accumulator: str) -> tuple[Param, ...]:
    output = "int32" if accumulator == "int32" else "fp32"
    arrays = [Param(name, "in", row.name, (r, "k")) for name, r in zip(
        ("a", "b1", "b2"), ("rows", "columns", "columns"), strict=True)]  # fmt: skip
    sums = Param("sums", "out", output, ("holders", "rows", "columns"))
    return (*arrays, sums, Param("pairs", "dim", "int32"))


def _mma(row: Format, path: Path, accumulator: str) -> Ceiling:
    cpp = {"fp32": "float", "int32": "int", "fp16": "ptx::f16"}[accumulator]
    instruction = path.instruction
    if accumulator == "fp16":
        instruction = instruction.replace(".f32", ".f16")
    entry = f"ceiling_mma<ptx::Atom<ptx::{row.ptx}, {cpp}, {path.k}>>"

    def work(size: Size) -> Work:
        blocks = size.multiprocessors * BLOCKS_AN_SM["mma.sync"]
        inputs, right, count = _product(
            row, accumulator, MMA_TILE, MMA_K_BYTES, blocks * MMA_WARPS, size.pairs
        )
        plan = LaunchPlan((blocks, 1, 1), (32 * MMA_WARPS, 1, 1))
        return Work(plan, inputs, {"pairs": size.pairs}, right, multiply_adds=count)

    build = RawBuild("ceilings/mma.cu", entry, feature_target=path.target.endswith("a"))
    return Ceiling(
        "mma.sync", row.name, accumulator, instruction, build, _params(row, accumulator), work
    )


def _wgmma(row: Format, path: Path) -> Ceiling:
    accumulator, cpp = ("int32", "int") if row.is_integer else ("fp32", "float")

    def work(size: Size) -> Work:
        blocks = size.multiprocessors * BLOCKS_AN_SM["wgmma"]
        inputs, right, count = _product(
            row, accumulator, WGMMA_TILE, WGMMA_K_BYTES, blocks * WGMMA_GROUPS, size.pairs
        )
        shared = (WGMMA_TILE[0] + 2 * WGMMA_TILE[1]) * WGMMA_K_BYTES
        plan = LaunchPlan((blocks, 1, 1), (128 * WGMMA_GROUPS, 1, 1), shared)
        return Work(plan, inputs, {"pairs": size.pairs}, right, multiply_adds=count)

    entry = f"ceiling_wgmma<ptx::{row.ptx}, {cpp}>"
    build = RawBuild("ceilings/wgmma.cu", entry, feature_target=True)
    instruction = path.instruction.replace("n8", f"n{WGMMA_TILE[1]}", 1)
    params = _params(row, accumulator)
    return Ceiling("wgmma", row.name, accumulator, instruction, build, params, work)


def _fma() -> Ceiling:
    params = (
        Param("a", "in", "fp32", ("chains",)),
        Param("b", "in", "fp32", ("one",)),
        Param("sums", "out", "fp32", ("threads", "chains")),
        Param("pairs", "dim", "int32"),
    )

    def work(size: Size) -> Work:
        blocks = size.multiprocessors * BLOCKS_AN_SM["fma"]
        rng = np.random.Generator(np.random.PCG64(0))
        a = (2 * rng.integers(0, 512, FMA_CHAINS) + 1).astype(np.float32)
        b = np.float32(2741.0)
        sums = a.astype(np.float64) * (size.pairs + float(b))
        if np.abs(sums).max() >= 1 << _EXACT_BITS["fp32"]:
            raise ValueError(f"{size.pairs} pairs exceed the exact integers of float32")
        threads = blocks * FMA_THREADS
        right = np.broadcast_to(sums.astype(np.float32), (threads, FMA_CHAINS))
        plan = LaunchPlan((blocks, 1, 1), (FMA_THREADS, 1, 1))
        count = threads * FMA_CHAINS * (2 * size.pairs + 1)
        inputs = {"a": a, "b": np.array([b])}
        return Work(plan, inputs, {"pairs": size.pairs}, right, multiply_adds=count)

    build = RawBuild("ceilings/fma.cu", "ceiling_fma")
    return Ceiling("fma", "fp32", "fp32", "fma.rn.f32", build, params, work)


def _random_pieces(size_bytes: int) -> NDArray[np.int32]:
    """(pieces, 4) random words; the same 64 MiB again and again where it is more."""
    words = _random_words(min(size_bytes, _RANDOM_BYTES) // 4)
    return np.resize(words, (size_bytes // PIECE_BYTES, 4))


@lru_cache(maxsize=1)
def _random_words(count: int) -> NDArray[np.int32]:
    """Drawn once for the sizes that a command measures; read-only."""
    rng = np.random.Generator(np.random.PCG64(1))
    words = rng.integers(-(1 << 31), 1 << 31, count, np.int32)
    words.flags.writeable = False
    return words


def _memory_params(out: Param) -> tuple[Param, ...]:
    read = Param("from", "in", "int32", ("words", "four"))
    return (read, out, Param("words", "dim", "int32"))


def _read(accesses: int) -> Ceiling:
    def work(size: Size) -> Work:
        blocks = size.multiprocessors * BLOCKS_AN_SM["read"]
        threads = blocks * MEMORY_THREADS
        pieces = size.memory_bytes // PIECE_BYTES // threads * threads
        data = _random_pieces(pieces * PIECE_BYTES)
        right = data.reshape(-1, threads, 4).sum(axis=(0, 2), dtype=np.int32)
        plan = LaunchPlan((blocks, 1, 1), (MEMORY_THREADS, 1, 1))
        return Work(plan, {"from": data}, {"words": pieces}, right, moved_bytes=data.nbytes)

    params = _memory_params(Param("sums", "out", "int32", ("threads",)))
    build = RawBuild("ceilings/memory.cu", f"ceiling_read<{accesses}>")
    return Ceiling("read", "bytes", "", None, build, params, work, accesses)


def _copy(accesses: int) -> Ceiling:
    def work(size: Size) -> Work:
        share = MEMORY_THREADS * accesses
        blocks = size.memory_bytes // PIECE_BYTES // share
        data = _random_pieces(blocks * share * PIECE_BYTES)
        plan = LaunchPlan((blocks, 1, 1), (MEMORY_THREADS, 1, 1))
        words = {"words": len(data)}
        return Work(plan, {"from": data}, words, data, moved_bytes=2 * data.nbytes)

    params = _memory_params(Param("to", "out", "int32", ("words", "four")))
    build = RawBuild("ceilings/memory.cu", f"ceiling_copy<{accesses}>")
    return Ceiling("copy", "bytes", "", None, build, params, work, accesses)
