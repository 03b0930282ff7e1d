"""Cut the recorded archives down to the samples that the tests carry.

    python scripts/build_golden_subset.py FOLDER_WITH_ARCHIVES [tests/data]

``mma_sm90_subset.npz``: a few products of every instruction form and family, those of the special
family with the most NaN, infinities and zeros. ``approx_sm90_sample.npz``: arguments and results
of the approximate instructions, drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PRODUCTS = 6  # of 64 a family
DRAWS = 1500  # of every sweep
CODES = 4096  # of every 16-bit table
SEED = 20260
SWEEPS = {  # key: (argument's first bits, exact function)
    "ex2_1_2": (0x3F800000, np.exp2),
    "ex2_m2_m1": (0xBF800000, np.exp2),
    "rcp_1_2": (0x3F800000, np.reciprocal),
    "rsqrt_1_4": (0x3F800000, lambda x: 1 / np.sqrt(x)),
    "sqrt_1_4": (0x3F800000, np.sqrt),
    "lg2_1_2": (0x3F800000, np.log2),
    "lg2_05_1": (0x3F000000, np.log2),
}


def sweep(
    archive: np.lib.npyio.NpzFile, name: str
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Arguments and results of a sweep, as bits."""
    key = next(k for k in archive.files if k.startswith(f"{name}|"))
    ulps = np.frombuffer(lzma.decompress(archive[key].tobytes()), dtype=key.split("|")[1])
    first, exact = SWEEPS[name]
    x = np.arange(first, first + len(ulps), dtype=np.int64).astype(np.uint32)
    rounded = exact(x.view(np.float32).astype(np.float64)).astype(np.float32).view(np.int32)
    return x, (rounded + ulps.astype(np.int32)).view(np.uint32)


def oddness(codes: NDArray[np.generic]) -> NDArray[np.int64]:
    """How many codes of each product are zero or have every exponent bit set."""
    width = 8 * codes.dtype.itemsize
    magnitude = codes & codes.dtype.type((1 << (width - 1)) - 1)
    top = {8: 0x7C, 16: 0x7C00, 32: 0x7F800000}[width]
    return ((magnitude >= top) | (magnitude == 0)).sum(axis=(1, 2))


def mma_subset(archive: np.lib.npyio.NpzFile) -> dict[str, NDArray[np.generic]]:
    out = {}
    for group in sorted({key.rpartition("/")[0] for key in archive.files}):
        a, b = archive[f"{group}/A"], archive[f"{group}/B"]
        if group.endswith("/special"):
            chosen = np.argsort(-(oddness(a) + oddness(b)), kind="stable")[:PRODUCTS]
        else:
            chosen = np.linspace(0, len(a) - 1, PRODUCTS).astype(int)
        for part in "ABCD":
            out[f"{group}/{part}"] = archive[f"{group}/{part}"][chosen]
    return out


def approx_sample(archive: np.lib.npyio.NpzFile) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(SEED)
    out: dict[str, NDArray[np.generic]] = {}
    for name in SWEEPS:
        x, y = sweep(archive, name)
        chosen = np.sort(rng.choice(len(x), DRAWS, replace=False))
        chosen[:2] = 0, len(x) - 1
        out[f"{name}/x"], out[f"{name}/y"] = x[chosen], y[chosen]
    for key in archive.files:
        if key.startswith("special_"):
            out[key] = archive[key]
        elif key.startswith("sub_"):
            i = np.sort(rng.choice(len(archive[key]), DRAWS, replace=False))
            out[f"{key}/x"] = (7 * (i.astype(np.int64) + 1) % (1 << 23)).astype(np.uint32)
            out[f"{key}/y"] = archive[key][i]
        elif key.startswith("h_"):
            codes = np.sort(rng.choice(1 << 16, CODES, replace=False)).astype(np.uint16)
            out[f"{key}/x"], out[f"{key}/y"] = codes, archive[key][codes]
    return out


def main() -> None:
    default = Path(__file__).parents[1] / "tests/data"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="folder of mma_sm90.npz and approx_sm90.npz")
    parser.add_argument("target", type=Path, nargs="?", default=default)
    options = parser.parse_args()
    source, target = options.source, options.target
    if not source.is_dir():
        parser.error(f"{source} is no folder")
    target.mkdir(parents=True, exist_ok=True)
    for name, cut, kept in (
        ("mma_sm90.npz", mma_subset, "mma_sm90_subset.npz"),
        ("approx_sm90.npz", approx_sample, "approx_sm90_sample.npz"),
    ):
        with np.load(source / name) as archive:
            np.savez_compressed(target / kept, **cut(archive))
        print(f"{target / kept}: {(target / kept).stat().st_size} bytes")


if __name__ == "__main__":
    main()
