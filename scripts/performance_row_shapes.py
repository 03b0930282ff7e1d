"""Tried shapes of row kernels for docs/performance.md: the best, and what the rest came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from performance_rows import ROW_TARGETS
from performance_tables import Record, number, span, table

from gpulab import arch
from gpulab.formats import get


def _shape(record: Record) -> str:
    """``streamed, threads 512, packs 8, ring 3``: zeros, and ones that are usual, left out."""
    usual = {"rows": 1, "cluster": 1, "shared": 0, "regs": 0}
    shape = record["shape"]
    parts = [f"{k} {v}" for k, v in shape.items() if k != "holds" and usual.get(k) != v]
    return "; ".join([", ".join([shape["holds"], *parts]), *record.get("changes", ())])


def rows_an_sm(shape: Record) -> float:
    """Rows that an SM works on at a time."""
    return float(shape["rows"] * shape["blocks"] / shape["cluster"])


Tried = dict[tuple[str, str, int], list[Record]]
"""By operation, format and columns."""


def _best(records: Sequence[Record]) -> tuple[Tried, dict[tuple[str, str, int], Record]]:
    tried: Tried = defaultdict(list)
    for r in records:
        tried[r["op"], r["format"], r["cols"]].append(r)
    return tried, {key: max(found, key=lambda r: r["fraction"]) for key, found in tried.items()}


def row_shapes(records: Sequence[Record]) -> str:
    """The best of the tried shapes by operation and columns, and what the rest came to."""
    least_bytes, *larger = sorted({r["array_bytes"] for r in records})
    tried, best = _best([r for r in records if r["array_bytes"] == least_bytes])
    others = {size: _best([r for r in records if r["array_bytes"] == size])[1] for size in larger}
    lines = []
    for key, found in tried.items():
        r, least = best[key], min(x["fraction"] for x in found)
        lines.append([
            f"{key[0]} {key[1]}", str(key[2]), _shape(r), str(len(found)),
            f"{r['fraction']:.3f} {r['of']}", f"{least:.3f}", number(rows_an_sm(r["shape"])),
            str(r["registers"]), str(r["spill_bytes"]),
            *(f"{at[key]['fraction']:.3f}" if key in at else "" for at in others.values()),
        ])  # fmt: skip
    head = "operation | columns | best shape | tried | share | worst | rows an SM | registers"
    head += " | spill bytes" + "".join(f" | best at {size >> 20} MiB" for size in larger)
    about = (
        f"Arrays of {least_bytes >> 20} MiB where nothing else is said. Shares are of a copy, or a "
        "read, by a kernel with four, or eight, accesses of a thread on their way, alike for all "
        "tries; above, rows are held against the fastest way. `scripts/try_rows.py` times shapes, "
        "`--sweep` all that have room.\n\n"
    )
    text = f"{about}{table(head, lines, left=3)}\n{_shape_limits(best)}"
    return text + _larger(best, others) + _changes(records)


def _larger(
    best: dict[tuple[str, str, int], Record], others: dict[int, dict[tuple[str, str, int], Record]]
) -> str:
    """How shares go with the size of the arrays."""
    text = ""
    for size, at in others.items():
        more = [at[key]["fraction"] - r["fraction"] for key, r in best.items() if key in at]
        if more:
            text += (
                f"\nIn arrays of {size >> 20} MiB the best share is higher for "
                f"{sum(x > 0 for x in more)} of {len(more)} rows, at the median by "
                f"{median(more):.3f}: the fewer turns a block has, the more of a launch is its "
                "start and its end, when fewer bytes are on their way.\n"
            )
    return text


def _changes(records: Sequence[Record]) -> str:
    """What changes of the sources did to the share of the same shape, beside a yardstick."""

    def of(r: Record, changes: Sequence[str]) -> tuple[object, ...]:
        shape = tuple(r["shape"].items())
        return r["op"], r["format"], r["cols"], r["array_bytes"], shape, tuple(changes)

    beside = [r for r in records if "yardstick_gb_per_s" in r]
    places: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, r in enumerate(beside):
        places[of(r, r.get("changes", ()))].append(i)
    ratios: dict[str, list[float]] = defaultdict(list)
    for i, r in enumerate(beside):
        for change in r.get("changes", ()):
            without = places.get(of(r, [c for c in r["changes"] if c != change]))
            if without:  # the nearest in the record: of the same run, where that has one
                near = min(without, key=lambda j: abs(j - i))
                ratios[change].append(r["fraction"] / beside[near]["fraction"])
    lines = [
        f"- {change}: higher in {sum(x > 1 for x in found)} of {len(found)}; {span(*found)} times "
        f"as much, median {median(found):.3f}"
        for change, found in sorted(ratios.items())
    ]
    if not lines:
        return ""
    return (
        "\nBlocks of a cluster hand partial results on at the cluster's barrier where nothing else "
        "is said. Its arrival compiles to MEMBAR.ALL.GPU, which waits for the stores of the row "
        "before, its wait to CCTL.IVALL, which empties the L1. Shares with changed sources, by the "
        "nearest in the record of the same shape without the change:\n\n" + "\n".join(lines) + "\n"
    )


def _shape_limits(best: dict[tuple[str, str, int], Record]) -> str:
    """How shares go with the rows that an SM holds, and where no tried shape is enough."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for r in best.values():
        if r["of"] == "copy":
            held = rows_an_sm(r["shape"])
            groups["two rows or more" if held >= 2 else "one" if held >= 1 else "less"].append(r)
    parts = [
        f"{name}: {span(*(r['fraction'] for r in groups[name]))}, "
        f"median {median(r['fraction'] for r in groups[name]):.3f} ({len(groups[name])})"
        for name in ("two rows or more", "one", "less")
        if groups[name]
    ]
    text = f"Best shares of a copy by what an SM works on at a time; {'; '.join(parts)}."
    if groups["one"] or groups["less"]:
        row = arch.get(arch.parse(next(iter(best.values()))["environment"]["capability"]))
        widest = max(r["cols"] * get(r["format"]).bits // 8 for r in best.values()) >> 10
        room = (row.registers_per_sm * 4 + row.shared_per_sm_bytes) >> 10
        text += (
            " The fewer rows there are, the fewer bytes move while one waits for its sums. The "
            f"longest row takes {widest} KiB; registers and shared memory of an SM hold {room}."
        )
    least = ROW_TARGETS["raw"]
    short = [
        f"{op} at {cols} ({r['fraction']:.3f})"
        for (op, _, cols), r in best.items()
        if r["fraction"] < least
    ]
    if short:
        told = f"In these tries, apart from the record above, no shape comes to {least}"
        return text + f"\n\n{told}: {', '.join(short)}.\n"
    return text + f"\n\nSome shape comes to {least} everywhere.\n"
