"""A plot of records: speed against the library by size, one line a row, and the error beside it.

Written as PNG and SVG. The SVG of the same records is the same file: it holds no date, and its
identifiers come from a fixed salt.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab.errors import UsageError
from gpulab.lab.render import case_name

Record = dict[str, Any]
Dims = tuple[tuple[str, int], ...]

SUFFIXES = (".png", ".svg")
_SALT = "gpulab"
_LOOK: dict[Any, Any] = {"svg.hashsalt": _SALT, "svg.fonttype": "none", "font.size": 8.0}
_MARKERS = "osD^v<>PX*"
_INCHES, _DPI = (11.0, 4.8), 160


@dataclass(frozen=True)
class Point:
    """One row at one size.

    Args:
        ratio: speed as a ratio to the library row of the same run.
        error: largest absolute error against float64 over the original inputs.
    """

    ratio: float
    error: float


def require() -> None:
    """Refuse before anything is measured where plots cannot be drawn.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "plots need matplotlib, which is not installed", fix="pip install 'gpulab[plot]'"
        )


def label(record: Record) -> str:
    """A line's name: ``wgmma bf16, fp32 acc -> bf16``."""
    return f"{record['kernel']} {case_name(record)}"


def lines(records: Sequence[Record]) -> dict[str, dict[Dims, Point]]:
    """Points by line and size: rows that pass and were timed beside their library.

    A row that was measured several times counts as it was measured last.

    Raises:
        UsageError: there is none.
    """
    found: dict[str, dict[Dims, Point]] = {}
    for record in records:
        versus, error = record.get("vs_library"), record.get("max_abs_err")
        if record.get("backend") == "library" or record.get("verdict") != "PASS":
            continue
        if not versus or error is None:
            continue
        dims = tuple(record["dims"].items())
        found.setdefault(label(record), {})[dims] = Point(float(versus["ratio"]), float(error))
    if not found:
        raise UsageError(
            "nothing to plot: no record passes and has the time of a library row beside it",
            fix="give records of 'gpulab bench matmul --save' from a card with cuBLAS",
        )
    return found


def sizes(points: Mapping[str, Mapping[Dims, Point]]) -> list[Dims]:
    """All sizes, by the work they take."""

    def work(dims: Dims) -> tuple[int, Dims]:
        product = 1
        for _, extent in dims:
            product *= extent
        return product, dims

    return sorted({dims for line in points.values() for dims in line}, key=work)


def size_name(dims: Dims) -> str:
    """``4096``, or ``8192x8192x1024`` where the extents differ."""
    extents = [extent for _, extent in dims]
    return str(extents[0]) if len(set(extents)) == 1 else "x".join(map(str, extents))


def files(name: Path) -> tuple[Path, Path]:
    """The PNG and the SVG of a name, whose own suffix of either kind is left out.

    Raises:
        UsageError: it is none, or the name of a folder.
    """
    if not name.name or name.is_dir():
        raise UsageError(f"a plot needs a name, and {name} is a folder", fix=str(name / "NAME"))
    stem = name.with_suffix("") if name.suffix in SUFFIXES else name
    png, svg = (stem.with_name(stem.name + suffix) for suffix in SUFFIXES)
    return png, svg


def title(records: Sequence[Record]) -> str:
    """The devices and drivers that the records name."""
    places = []
    for record in records:
        around = record.get("environment") or record
        parts = [str(around.get("device_name") or ""), str(around.get("driver") or "")]
        places.append(", ".join(part for part in parts if part))
    return "; ".join(dict.fromkeys(place for place in places if place))


def draw(records: Sequence[Record], name: Path) -> tuple[Path, Path]:
    """Write the plot of the records.

    Args:
        records: as ``bench matmul`` saves them.
        name: path without suffix.

    Returns:
        The PNG and the SVG file.

    Raises:
        UsageError: nothing to plot, no name, or matplotlib is not installed.
    """
    require()
    points = lines(records)
    import matplotlib
    from matplotlib.figure import Figure

    every = sizes(points)
    png, svg = files(name)
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=_INCHES, layout="constrained")
        speed, error = figure.subplots(1, 2)
        for number, (text, line) in enumerate(points.items()):
            there = [(i, line[dims]) for i, dims in enumerate(every) if dims in line]
            style = {
                "marker": _MARKERS[(number + number // len(_MARKERS)) % len(_MARKERS)],
                "markersize": 4,
                "linewidth": 1.2,
            }
            at = [i for i, _ in there]
            speed.plot(at, [p.ratio for _, p in there], label=text, **style)
            # A logarithmic axis has no place for an exact row.
            error.plot(at, [p.error or float("nan") for _, p in there], label=text, **style)
        speed.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
        speed.set_ylim(bottom=0.0)
        speed.set_ylabel("speed against the library (1 = equal)")
        error.set_yscale("log")
        error.set_ylabel("max |error| against float64")
        for axes in (speed, error):
            axes.set_xticks(
                range(len(every)), [size_name(d) for d in every], rotation=30, ha="right"
            )
            axes.grid(alpha=0.3)
        figure.suptitle(title(records))
        figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(png, dpi=_DPI, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return png, svg
