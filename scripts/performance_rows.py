"""Row operations for docs/performance.md: shares of the bandwidth, targets, what limits each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from performance_tables import Record, missed, ran, row_name, span, table

from gpulab import ops, registry
from gpulab.formats import get

ROW_OPS = ("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy")
ROW_COLUMNS = (4096, 8192, 32768, 131072, 262144)
ROW_TARGETS = {"raw": 0.92, "numba": 0.8}
ROW_FORMAT, LEAST_BYTES = "bf16", 64_000_000
"""The share of the bandwidth that rows of this format reach on arrays of so many bytes."""

Key = tuple[str, str]
"""Operation and row."""


class Column(NamedTuple):
    """Columns of the rows, and of larger arrays than the least that count also their bytes."""

    cols: int
    larger: int = 0

    def __str__(self) -> str:
        return f"{self.cols} ({self.larger >> 20} MiB)" if self.larger else str(self.cols)


def _column(record: Record) -> Column:
    size = _array_bytes(record)
    return Column(record["dims"]["cols"], size if size >= 2 * LEAST_BYTES else 0)


def _array_bytes(record: Record) -> int:
    dims = record["dims"]
    return int(dims["rows"] * dims["cols"] * get(record["format"]).bits // 8)


MECHANISMS = {
    "layernorm": "It computes the most a column. Where they do not stay in registers, weight and "
    "bias come from L2 for every row, as many elements as are read of x and written of y.",
    "rmsnorm": "Where it does not stay in registers, the weight comes from L2 for every row.",
    "rmsnorm residual": "What is stored of the sum is on its way when the blocks of a row meet, "
    "and their barrier waits for it.",
    "two_pass": "The exponentials of its sum wait for the largest that a thread, or a row, has.",
}
"""What a row does that others of as many bytes do not; by both names, or one of them."""


def expected(op: str) -> list[Key]:
    """Operation and row of every kernel that a target is for."""
    found = []
    for case in registry.cases(op, format=ROW_FORMAT):
        v, spec = case.variant, case.spec
        if not v.lesson and spec.backend in ROW_TARGETS:
            named = {"backend": spec.backend, "kernel": spec.name, "format": ROW_FORMAT}
            contract = v.contract or getattr(ops.get(op), "default_contract", "")
            sums = {"accumulator": v.accumulator, "output": v.output, "contract": contract}
            found.append((op, row_name(named | sums)))
    return found


def _share(record: Record | None) -> float | None:
    beside = record and record.get("bandwidth")
    return float(beside["fraction"]) if beside and record["verdict"] == "PASS" else None


def _counts(record: Record) -> bool:
    """Whether the target is for this record."""
    enough = _array_bytes(record) >= LEAST_BYTES
    return record["format"] == ROW_FORMAT and enough and record["dims"]["cols"] in ROW_COLUMNS


def _result(at: dict[Column, Record], least: float) -> str:
    """Met, or what is missed where; and the columns that are not recorded."""
    counted = {column: r for column, r in sorted(at.items()) if _counts(r)}
    said = []
    for column, r in counted.items():
        got = _share(r)
        text = (r["verdict"] if got is None else missed(got, least)) or ""
        said += [f"{text} at {column}"] if text else []
    if counted and not said:
        said.append("met")
    absent = [str(c) for c in ROW_COLUMNS if Column(c) not in counted]
    if absent:
        said.append(f"not recorded at {', '.join(absent)}")
    return "; ".join(said)


def row_operations(records: Sequence[Record]) -> str:
    """Shares of the bandwidth by operation, row and columns, against the targets."""
    there: dict[Key, dict[Column, Record]] = defaultdict(dict)
    for r in sorted(ran(records), key=_counts):  # what counts stands, not a smaller array
        there[r["op"], row_name(r)][_column(r)] = r
    columns = sorted({*map(Column, ROW_COLUMNS), *(c for at in there.values() for c in at)})
    wanted = [key for op in ROW_OPS for key in expected(op)]
    lines = []
    for key in sorted(dict.fromkeys((*wanted, *there)), key=lambda key: ROW_OPS.index(key[0])):
        at = there.get(key, {})
        formats = {r["format"] for r in at.values()} or {ROW_FORMAT}
        least = ROW_TARGETS.get(key[1].split("/")[0]) if formats == {ROW_FORMAT} else None
        cells = [_cell(at.get(c), least) for c in columns]
        ends = ("", "") if least is None else (f"{least:.2f}", _result(at, least))
        lines.append([*key, ends[0], *cells, ends[1]])
    head = " | ".join(["operation | row | wanted", *map(str, columns), "result"])
    about = (
        "Share of the bandwidth of a copy (cross entropy: of a read) of as many bytes, timed in "
        "turns with the row, by columns: of the fastest of those below; in bold what misses its "
        "target. Targets are for "
        f"{ROW_FORMAT} arrays of {LEAST_BYTES // 10**6} MB and more: where no size is given, of "
        f"less than {2 * LEAST_BYTES // 10**6}.\n\n"
    )
    ways = _ways([r for at in there.values() for r in at.values()])
    return about + table(head, lines, left=2) + "\n" + ways + _row_limits(there)


def _ways(records: Sequence[Record]) -> str:
    """How fast each way to copy, or read, as many bytes was beside the rows."""
    speeds: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in records:
        beside = r.get("bandwidth") or {}
        for way, speed in beside.get("ways_gb_per_s", {}).items():
            about = float(f"{beside['moved_bytes']:.1e}")  # parameters add little
            speeds[beside["of"], about][way].append(speed)
    if not speeds:
        return ""
    names = list(dict.fromkeys(way for at in speeds.values() for way in at))
    lines = []
    for (of, moved), at in sorted(speeds.items()):
        medians = {way: median(found) for way, found in at.items()}
        best = max(medians.values())
        cells = [
            "" if (x := medians.get(way)) is None else f"**{x:.0f}**" if x == best else f"{x:.0f}"
            for way in names
        ]
        lines.append([of, f"{moved / 1e6:.0f}", *cells])
    head = " | ".join(["traffic | MB", *names])
    about = (
        "GB/s of the traffic beside the rows, median of the turns with each row, by its way:\n\n"
    )
    return about + table(head, lines, left=1) + "\n"


def _cell(record: Record | None, least: float | None) -> str:
    if record is None:
        return ""
    got = _share(record)
    if got is None:
        return "-" if record["verdict"] == "PASS" else str(record["verdict"])
    bold = least is not None and _counts(record) and got < least
    return f"**{got:.3f}**" if bold else f"{got:.3f}"


def _row_limits(there: dict[Key, dict[Column, Record]]) -> str:
    """What limits each row: the memory where it comes near it, else what the others show."""
    shares = {
        (key, cols): share
        for key, at in there.items()
        for cols, r in sorted(at.items())
        if _counts(r) and (share := _share(r)) is not None
    }
    if not shares:
        return "No row that a target is for is recorded.\n"
    least = ROW_TARGETS["raw"]
    near = [share for share in shares.values() if share >= least]
    text = f"{len(near)} of {len(shares)} recorded shares are {least} or more"
    if near:
        text += (
            f" ({span(*near)}): what limits these is the memory, which moves as many bytes hardly "
            "faster for a kernel that computes nothing"
        )
    lines = []
    for key in there:
        far = {cols: x for (k, cols), x in shares.items() if k == key and x < least}
        if far:
            at = ", ".join(f"{x:.3f} at {cols}" for cols, x in far.items())
            lines.append(f"- {_short(key)}: {at}. {_reason(key, far, shares, there)}")
    return f"{text}.\n" + ("\nThe others:\n\n" + "\n".join(lines) + "\n" if lines else "")


def _reason(
    key: Key,
    far: dict[Column, float],
    shares: dict[tuple[Key, Column], float],
    there: dict[Key, dict[Column, Record]],
) -> str:
    """What the rows that move as many bytes show about one that stays away from the bandwidth."""
    allowed: dict[str, list[str]] = defaultdict(list)
    alone: dict[str, list[str]] = defaultdict(list)
    for cols, got in far.items():
        mine = there[key][cols]["bandwidth"]
        others = [
            (share, _short(k))
            for (k, c), share in shares.items()
            if (k, c) != (key, cols)
            and c == cols
            and all(there[k][c]["bandwidth"][x] == mine[x] for x in ("of", "moved_bytes"))
        ]
        best, whose = max([*others, (got, "this row")])
        where = allowed if best >= ROW_TARGETS["raw"] else alone
        where[whose].append(f"{best:.3f} at {cols}")
    used = there[key][min(far, key=lambda cols: far[cols])].get("resources")
    warps = used["blocks_per_sm"] * used["threads_per_block"] // 32 if used else 0
    room = used and (
        f"{warps} warps an SM (limited by {', '.join(used['occupancy_limited_by'])}; "
        f"{used['registers']} registers a thread, {used['spill_bytes']} bytes spilled)"
    )
    text = []
    if allowed:
        text.append(f"The memory allows more, as rows of as many bytes show: {_listed(allowed)}.")
        text.append(f"What is missing are its own instructions and waits{_with(room)}.")
    if alone:
        text.append(
            f"The fastest of as many bytes: {_listed(alone)}{'' if allowed else _with(room)}."
        )
    kernel = key[1].split()[0].split("/")[1]
    named = (f"{key[0]} {kernel.removesuffix('_rounded')}", key[0], kernel)
    text += [MECHANISMS[name] for name in named if name in MECHANISMS][:1]
    return " ".join(text)


def _short(key: Key) -> str:
    """``softmax raw/online``."""
    return f"{key[0]} {key[1].split()[0]}"


def _listed(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{whose} {', '.join(at)}" for whose, at in found.items())


def _with(room: str | None) -> str:
    return f", with {room}" if room else ""
