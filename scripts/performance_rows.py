"""Row operations for docs/performance.md: shares of the bandwidth, targets, what limits each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from performance_tables import Record, missed, number, ran, row_name, span, table

from gpulab import arch, ops, registry
from gpulab.formats import get

ROW_OPS = ("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy")
ROW_COLUMNS = (4096, 8192, 32768, 131072, 262144)
ROW_TARGETS = {"raw": 0.92, "numba": 0.8}
ROW_FORMAT, LEAST_BYTES = "bf16", 64_000_000
"""The share of the bandwidth that rows of this format reach on arrays of so many bytes."""

Key = tuple[str, str]
"""Operation and row."""

MECHANISMS = {
    "layernorm": "Where they do not stay in registers, weight and bias come from L2 for every "
    "row, as many elements as are read of x and written of y.",
    "rmsnorm": "The weight comes from L2 for every row.",
    "two_pass": "The exponentials of its sum wait for the maximum of the whole row, and while "
    "they are computed nothing of that row is on its way.",
}
"""What a row does that others of as many bytes do not: by operation, or kernel of softmaxes."""


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
    dims = record["dims"]
    size = dims["rows"] * dims["cols"] * get(record["format"]).bits // 8
    return record["format"] == ROW_FORMAT and size >= LEAST_BYTES and dims["cols"] in ROW_COLUMNS


def _result(at: dict[int, Record], least: float) -> str:
    """Met, or what is missed where; and the columns that are not recorded."""
    counted = {cols: r for cols, r in sorted(at.items()) if _counts(r)}
    said = []
    for cols, r in counted.items():
        got = _share(r)
        text = (r["verdict"] if got is None else missed(got, least)) or ""
        said += [f"{text} at {cols}"] if text else []
    if counted and not said:
        said.append("met")
    absent = [str(c) for c in ROW_COLUMNS if c not in counted]
    if absent:
        said.append(f"not recorded at {', '.join(absent)}")
    return "; ".join(said)


def row_operations(records: Sequence[Record]) -> str:
    """Shares of the bandwidth by operation, row and columns, against the targets."""
    there: dict[Key, dict[int, Record]] = defaultdict(dict)
    for r in sorted(ran(records), key=_counts):  # what counts stands, not a smaller array
        there[r["op"], row_name(r)][r["dims"]["cols"]] = r
    columns = sorted({*ROW_COLUMNS, *(c for at in there.values() for c in at)})
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
        "turns with the row, by columns; in bold what misses its target. Targets are for "
        f"{ROW_FORMAT} arrays of {LEAST_BYTES // 10**6} MB and more.\n\n"
    )
    return about + table(head, lines, left=2) + "\n" + _row_limits(there)


def _cell(record: Record | None, least: float | None) -> str:
    if record is None:
        return ""
    got = _share(record)
    if got is None:
        return "-" if record["verdict"] == "PASS" else str(record["verdict"])
    bold = least is not None and _counts(record) and got < least
    return f"**{got:.3f}**" if bold else f"{got:.3f}"


def _row_limits(there: dict[Key, dict[int, Record]]) -> str:
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
    far: dict[int, float],
    shares: dict[tuple[Key, int], float],
    there: dict[Key, dict[int, Record]],
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
    text += [MECHANISMS[name] for name in (key[0], kernel) if name in MECHANISMS][:1]
    return " ".join(text)


def _short(key: Key) -> str:
    """``softmax raw/online``."""
    return f"{key[0]} {key[1].split()[0]}"


def _listed(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{whose} {', '.join(at)}" for whose, at in found.items())


def _with(room: str | None) -> str:
    return f", with {room}" if room else ""


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
    about = f"Arrays of {least_bytes >> 20} MiB where nothing else is said.\n\n"
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
    shares = {of(r, r.get("changes", ())): r["fraction"] for r in beside}
    ratios: dict[str, list[float]] = defaultdict(list)
    for r in beside:
        for change in r.get("changes", ()):
            without = shares.get(of(r, [c for c in r["changes"] if c != change]))
            if without:
                ratios[change].append(r["fraction"] / without)
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
        "before, its wait to CCTL.IVALL, which empties the L1. Shares with changed sources, and "
        "those of the same shape without the change:\n\n" + "\n".join(lines) + "\n"
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
        return text + f"\n\nNo shape that was tried comes to {least}: {', '.join(short)}.\n"
    return text + f"\n\nSome shape comes to {least} everywhere.\n"
