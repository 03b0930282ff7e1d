"""Derive the coefficients of the approximate instructions from recorded sweeps, and check them.

    python scripts/build_approx_tables.py approx_sm90.npz [OUTPUT.npz]

Each segment's quadratic is found by least squares and rounded to the unit of its coefficients;
the constant term then lies in an interval, and the intervals of all segments leave one rounding
constant per function. Every value of every sweep must come out equal, or nothing is written.
"""

from __future__ import annotations

import argparse
import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics._interpolate import (
    C0_FRACTION,
    C1_FRACTION,
    C2_FRACTION,
    FRACTION,
    LOW_BITS,
    polynomial,
    prepare,
    truncated_squares,
)

DEFAULT = Path(__file__).parents[1] / "gpulab/numerics/data/approx_sm90.npz"
LG2_STEP = 2.0**-12  # lg2 is cut to 2^-36 before it becomes a float32: units of 2^-24


@dataclass(frozen=True)
class Sweep:
    name: str  # key in the archive
    first: float
    exact: object
    scale: float  # units of the last place in 1.0
    low_bits: int  # argument bits below the segment


SWEEPS = {
    "ex2": Sweep("ex2_1_2", 1.0, np.exp2, 2.0**22, 17),
    "rcp": Sweep("rcp_1_2", 1.0, np.reciprocal, 2.0**24, 16),
    "rsqrt": Sweep("rsqrt_1_4", 1.0, lambda x: 1 / np.sqrt(x), 2.0**24, 17),
    "sqrt": Sweep("sqrt_1_4", 1.0, np.sqrt, 2.0**23, 17),
    "lg2": Sweep("lg2_1_2", 1.0, np.log2, 2.0**24, 17),
}


def recorded(archive: np.lib.npyio.NpzFile, sweep: Sweep) -> NDArray[np.float32]:
    """What the card gave for every argument of a sweep, in order."""
    key = next(k for k in archive.files if k.startswith(f"{sweep.name}|"))
    ulps = np.frombuffer(lzma.decompress(archive[key].tobytes()), dtype=key.split("|")[1])
    start = int(np.float32(sweep.first).view(np.uint32))
    x = np.arange(start, start + len(ulps), dtype=np.uint32).view(np.float32).astype(np.float64)
    rounded = sweep.exact(x).astype(np.float32).view(np.int32)
    return (rounded + ulps.astype(np.int32)).view(np.float32)


def fit(sweep: Sweep, values: NDArray[np.float32]) -> tuple[NDArray[np.int64], int]:
    """Coefficients (segments, 3) in their units, and the rounding constant in 2^-FRACTION."""
    n = 1 << sweep.low_bits
    x = np.arange(n, dtype=np.int64) << (LOW_BITS - sweep.low_bits)
    square = truncated_squares()[x]
    basis = np.stack([np.ones(n), x / n, square / n**2], axis=1)
    solve = np.linalg.pinv(basis[1:])
    low = values.astype(np.float64) * sweep.scale
    width = np.ones_like(low)
    if sweep.name.startswith("lg2"):
        width = np.maximum(np.spacing(values).astype(np.float64) * sweep.scale, LG2_STEP)
    rows, intervals = [], []
    for segment in range(len(values) // n):
        part = slice(segment * n + 1, (segment + 1) * n)  # the first may be a special case
        _, slope, curve = solve @ (low[part] + width[part] / 2)
        c1 = round(slope / n * 2**C1_FRACTION)
        c2 = round(curve / n**2 * 2**C2_FRACTION)
        rest = (c1 * x[1:] << (FRACTION - C1_FRACTION)) + (
            c2 * square[1:] << (FRACTION - C2_FRACTION)
        )
        bottom = np.rint(low[part] * 2.0**FRACTION).astype(np.int64) - rest
        top = bottom + np.rint(width[part] * 2.0**FRACTION).astype(np.int64)
        rows.append((c1, c2))
        intervals.append((int(bottom.max()), int(top.min()) - 1))
    unit = 1 << (FRACTION - C0_FRACTION)
    constant = common_constant(intervals, unit)
    table = []
    for (c1, c2), (bottom, top) in zip(rows, intervals, strict=True):
        c0 = -((constant - bottom) // unit)
        if c0 * unit + constant > top:
            raise SystemExit(f"{sweep.name}: no constant term fits a segment")
        table.append((c0, c1, c2))
    return np.array(table, dtype=np.int64), constant


def common_constant(intervals: list[tuple[int, int]], unit: int) -> int:
    """The value, modulo ``unit``, that lies in every interval; the one with most zero bits."""
    first = intervals[0][0]
    shifted = [
        ((low - first + unit // 2) % unit - unit // 2, high - low) for low, high in intervals
    ]
    bottom = first + max(offset for offset, _ in shifted)
    top = first + min(offset + size for offset, size in shifted)
    if bottom > top:
        raise SystemExit("the segments share no rounding constant")
    for bits in range(FRACTION, -1, -1):
        value = -(-bottom >> bits) << bits
        if value <= top:
            return value % unit
    raise AssertionError("bits = 0 always fits")


def check(
    sweep: Sweep, table: NDArray[np.int64], constant: int, values: NDArray[np.float32]
) -> None:
    """Every value of the sweep but the exact first one, which has its own rule."""
    position = np.arange(len(values), dtype=np.int64)
    octaves = len(values) >> 23
    units = polynomial(prepare(table, constant), position, octaves)
    if sweep.name.startswith("lg2"):
        step = FRACTION + int(np.log2(LG2_STEP))
        cut = (units >> step).astype(np.float64) * LG2_STEP / sweep.scale
        bits = cut.view(np.int64) & np.int64(-1 << 29)  # toward zero to 24 significant bits
        got = bits.view(np.float64)
    else:
        got = (units >> FRACTION) / sweep.scale
    wrong = np.count_nonzero(got[1:] != values[1:])
    if wrong:
        raise SystemExit(f"{sweep.name}: {wrong} of {len(values)} values differ")


def half_table(archive: np.lib.npyio.NpzFile, key: str) -> NDArray[np.uint16]:
    """Differences of the results for ascending non-negative codes (the function is odd)."""
    raw = archive[key]
    positive, negative = raw[:0x8000], raw[0x8000:]
    nan = positive == 0x7FFF
    if not (np.where(nan, positive, positive | 0x8000) == negative).all():
        raise SystemExit(f"{key} is not odd")
    return np.diff(positive, prepend=np.uint16(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="approx_sm90.npz")
    parser.add_argument("target", type=Path, nargs="?", default=DEFAULT)
    options = parser.parse_args()
    source, target = options.source, options.target
    if not source.is_file():
        parser.error(f"{source} is not there")
    out: dict[str, NDArray[np.generic]] = {}
    with np.load(source) as archive:
        for name, sweep in SWEEPS.items():
            values = recorded(archive, sweep)
            table, constant = fit(sweep, values)
            check(sweep, table, constant, values)
            out[name] = table.astype(np.int32)
            out[f"{name}_constant"] = np.int64(constant)
            print(f"{name}: {len(table)} segments, constant {constant / 2**FRACTION:.9f} ulp")
        for kind in ("f16", "bf16"):
            out[f"tanh_{kind}"] = half_table(archive, f"h_tanh_{kind}")
    np.savez_compressed(target, **out)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
