"""Attention for docs/performance.md: rates against the targets, and what limits the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from performance_tables import Record, missed, number, ran, row_name, span, table

KERNEL, FORMATS, SEQS, HEAD_DIM = "mma", ("bf16", "fp16"), (4096, 16384), 128
TARGETS = {0: 300.0, 1: 270.0}
"""TFLOP/s of ``KERNEL``, by causality."""
MASKS = {0: "full", 1: "causal"}
PRODUCTS = "all but the products"
"""What the ablation that keeps nothing else leaves out."""


def _counts(record: Record) -> bool:
    """Whether a target is for this record."""
    d = record["dims"]
    plain = not (d["window"] or d["bias_planes"] or d["mask_planes"])
    return (
        (record["backend"], record["kernel"]) == ("raw", KERNEL)
        and record["format"] in FORMATS
        and d["head_dim"] == HEAD_DIM
        and d["seq_q"] == d["seq_k"]
        and d["seq_q"] in SEQS
        and plain
    )


def _seen(dims: Record) -> str:
    window = f", window {dims['window']}" if dims["window"] else ""
    return MASKS[dims["causal"]] + window


def attention(records: Sequence[Record]) -> str:
    """Every row with its rate, the target it has, and the share of its instruction's rate."""
    lines = []
    there = set()
    for r in ran(records):
        d, line = r["dims"], (r.get("roofline") or {}).get("compute")
        wanted = said = ""
        if _counts(r):
            there.add((r["format"], d["seq_q"], d["causal"]))
            least = TARGETS[d["causal"]]
            good = r["verdict"] == "PASS" and r["tflops"] is not None
            wanted, said = f"{least:.0f}", "no rate"
            if good:
                said = missed(r["tflops"], least) or "met"
        lines.append([
            row_name(r), _seen(d), str(d["seq_q"]), f"{d['batch']} x {d['heads']}",
            str(d["head_dim"]), number(r["max_abs_err"]),
            number(r["arithmetic_gate"]["fraction"]), number(r["tflops"], 4), wanted,
            "-" if line is None else f"{line['fraction']:.1%} {line['binds']}", r["verdict"], said,
        ])  # fmt: skip
    head = "row | keys | seq | batch x heads | head dim | max abs err | arith frac | TFLOP/s"
    text = table(head + " | wanted | of ceiling | verdict | result", lines, left=2)
    absent = [
        f"{fmt} {MASKS[causal]} at {seq}"
        for fmt in FORMATS
        for seq in SEQS
        for causal in TARGETS
        if (fmt, seq, causal) not in there
    ]
    if absent:
        text += f"\nTargets that are not recorded: {', '.join(absent)}.\n"
    return text


def limits(records: Sequence[Record]) -> str:
    """Rates of the shipped kernel, of it less some cost, of other tiles; what follows."""
    timed = [r for r in records if r["kind"] != "ceiling" and r.get("time_ms")]
    problems = list(dict.fromkeys(_problem(r) for r in timed))
    at: dict[tuple[str, str], dict[Any, Record]] = {}
    for r in timed:
        at.setdefault((r["kind"], _name(r)), {})[_problem(r)] = r
    shipped = next((here for (kind, _), here in at.items() if kind == "shipped"), None)
    if shipped is None:
        return "The shipped kernel is not among the records.\n"
    lines = []
    for (kind, name), here in at.items():
        used = next(iter(here.values()))["resources"]
        said = dict.fromkeys(r["verdict"] or "not judged" for r in here.values())
        label = {"shipped": f"shipped: {name}", "ablation": f"without {name}"}.get(kind, name)
        if name == PRODUCTS:
            label = "products only"
        lines.append([
            label, *(_rate(here.get(p), shipped.get(p)) for p in problems),
            str(used["registers"]), str(used["spill_bytes"]), str(used["shared_bytes"]),
            str(warps(used)), ", ".join(said),
        ])  # fmt: skip
    heads = [f"seq {seq} {MASKS[causal]}" for _, seq, causal in problems]
    head = " | ".join(["kernel", *heads, "registers", "spill bytes", "shared bytes", "warps an SM"])
    about = (
        "TFLOP/s, counted as if nothing were left out, and the gain over the shipped kernel. "
        "What leaves something out computes something else and is not judged.\n\n"
    )
    ceiling = next((r["tflops"] for r in records if r["kind"] == "ceiling"), None)
    return f"{about}{table(head + ' | verdict', lines)}\n{_account(at, shipped, ceiling)}"


def warps(used: Record) -> int:
    """That an SM holds."""
    return int(used["blocks_per_sm"] * used["threads_per_block"] // 32)


def _problem(record: Record) -> tuple[int, int, int]:
    d = record["dims"]
    return d["batch"], d["seq_q"], d["causal"]


def _name(record: Record) -> str:
    if record["kind"] == "ablation":
        return f"{record['left_out']}"
    t = record["tile"]
    return (
        f"{t['warps']} warps of {16 * t['row_tiles']} queries, {t['keys']} keys, "
        f"{t['stages']} stages, {t['group']} heads together, {t['blocks']} blocks"
    )


def _rate(record: Record | None, shipped: Record | None) -> str:
    if record is None or record["verdict"] not in (None, "PASS"):
        return "" if record is None else str(record["verdict"])
    if shipped is None or record is shipped:
        return number(record["tflops"], 4)
    return f"{number(record['tflops'], 4)} ({record['tflops'] / shipped['tflops'] - 1:+.1%})"


def _account(
    at: dict[tuple[str, str], dict[Any, Record]], shipped: dict[Any, Record], ceiling: float | None
) -> str:
    """Where the time goes, by what the shipped kernel gains without each cost."""
    left_out = {
        name: here
        for (kind, name), here in at.items()
        if kind == "ablation" and here.keys() == shipped.keys()
    }
    saved = {
        name: [1 - _ms(here[p]) / _ms(shipped[p]) for p in shipped]
        for name, here in left_out.items()
    }
    parts = []
    if ceiling is not None:
        shares = [r["tflops"] / ceiling for r in shipped.values()]
        parts.append(
            f"The instruction alone runs at {number(ceiling, 4)} TFLOP/s here; the shipped kernel "
            f"comes to {span(*shares, unit='.0%')} of that"
        )
        if (rest := left_out.get(PRODUCTS)) is not None:
            shares = [r["tflops"] / ceiling for r in rest.values()]
            parts[-1] += (
                f", its products with the reads of their operands from shared memory, and "
                f"nothing else, to {span(*shares, unit='.0%')}"
            )
        parts[-1] += "."
    single = {name: x for name, x in saved.items() if name != PRODUCTS}
    if single:
        order = sorted(single, key=lambda name: -mean(single[name]))
        each = ", ".join(f"the {name} {span(*single[name], unit='.1%')}" for name in order)
        parts.append(f"Left out alone saves of its time: {each}.")
        if PRODUCTS in saved:
            whole, first = saved[PRODUCTS], mean(single[order[0]])
            parts.append(
                f"All of it left out saves {span(*whole, unit='.1%')}: so much the products do not "
                f"hide. The largest cost, of the {order[0]}, is {first / mean(whole):.0%} of that."
            )
    used = next(iter(shipped.values()))["resources"]
    parts.append(
        f"An SM holds {warps(used)} warps (limited by {', '.join(used['occupancy_limited_by'])}): "
        "while one computes exponentials or waits, so few others have products to issue."
    )
    return " ".join(parts) + "\n\n" + _tiles(at, shipped)


def _ms(record: Record) -> float:
    return float(record["time_ms"]["median"])


def _tiles(at: dict[tuple[str, str], dict[Any, Record]], shipped: dict[Any, Record]) -> str:
    """Whether another tile is faster."""
    gains = {
        name: [here[p]["tflops"] / shipped[p]["tflops"] - 1 for p in shipped]
        for (kind, name), here in at.items()
        if kind == "tile"
        and here.keys() == shipped.keys()
        and all(r["verdict"] == "PASS" for r in here.values())
    }
    if not gains:
        return ""
    name = max(gains, key=lambda name: mean(gains[name]))
    everywhere = [name for name, found in gains.items() if min(found) > 0]
    text = (
        f"Of {len(gains)} other tiles the fastest on average is that of {name}: "
        f"{span(*gains[name], unit='+.1%')}."
    )
    if everywhere:
        return f"{text} Faster everywhere: {'; '.join(everywhere)}.\n"
    return f"{text} None is faster everywhere.\n"
