"""What the gates catch: every lesson, the gate that fails it, and what the usual test says.

A lesson is a kernel that is wrong on purpose. Everything here is taken from the records of kernels
that ran: no lesson is judged a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from gpulab.lab.render import number
from gpulab.lab.verdict import lesson_holds
from gpulab.numerics.errors import USUAL
from gpulab.numerics.verdict import REASONS

Record = dict[str, Any]

LEGEND = (
    "interval, rms, exact-probe: the parts of the arithmetic gate; contract: the published ceiling"
)
_PARTS = list(REASONS)

ORDINARY = "normal"
"""The input family that tests usually draw: N(0, 1)."""


def _worst(fraction: float | None) -> float:
    """A share of a bound; None in a record stands for infinity, which JSON cannot hold."""
    return float("inf") if fraction is None else fraction


def _shown_on(record: Record) -> Record | None:
    """The family or probe that shows the mistake: one the lesson is made for, else the worst."""
    families = {f["family"]: f for f in record["families"] if f["family"] in record["caught_on"]}
    for name in record["shows_on"]:
        if name in families:
            return dict(families[name])
    if families:
        return dict(
            max(
                families.values(),
                key=lambda f: max(_worst(f["interval_fraction"]), _worst(f["rms_fraction"])),
            )
        )
    return next((dict(p) for p in record["probes"] if p["probe"] in record["caught_on"]), None)


def caught(records: Sequence[Record]) -> list[Record]:
    """One record for each lesson that was judged: what caught it, and what ``allclose`` says.

    Args:
        records: of ``evaluate``; rows that are not lessons, or did not run, are ignored. A lesson
            that was judged at several sizes is reported once: at the first size at which nothing
            caught it, else at the first size.

    Returns:
        ``caught``: whether a gate failed it because of its numbers; ``input``: the family or probe
        that shows the mistake best; ``failed_by``: the gates and parts that fail it on that input;
        ``max_abs_err``: against R1 on that input (None: NaN or Inf); ``allclose``: by tolerance,
        whether ``allclose`` passes on that input; ``allclose_ordinary``: the same on N(0, 1).
    """
    found: dict[tuple[str, ...], Record] = {}
    for r in records:
        if not r["lesson"] or r["verdict"] is None or r.get("error"):
            continue
        shown = _shown_on(r) or {}
        ordinary: Record = next((f for f in r["families"] if f["family"] == ORDINARY), {})
        row: Record = {
            "schema": 1,
            "kind": "lesson",
            **{
                field: r[field]
                for field in (
                    "op", "kernel", "backend", "format", "accumulator", "output", "contract",
                    "device", "capability", "dims", "note",
                )
            },
            "caught": lesson_holds(r) and bool(shown),
            "input": shown.get("family", shown.get("probe")),
            "failed_by": sorted(
                {text.split(":")[0] for text in shown.get("reasons", ())}, key=_PARTS.index
            ),
            "max_abs_err": shown.get("max_abs_err_stored"),
            "allclose": shown.get("allclose"),
            "allclose_ordinary": ordinary.get("allclose"),
        }  # fmt: skip
        if found.setdefault(_key(r), row)["caught"] and not row["caught"]:
            found[_key(r)] = row
    return list(found.values())


def refused(records: Sequence[Record]) -> list[Record]:
    """Lessons that ran at no size, because their mistake cannot show there; one record each."""
    ran = {_key(r) for r in records if r["verdict"] is not None}
    absent = [r for r in records if r["lesson"] and r["verdict"] is None and _key(r) not in ran]
    return list({_key(r): r for r in absent}.values())


def _key(record: Record) -> tuple[str, ...]:
    return tuple(
        str(record[field]) for field in ("op", "backend", "kernel", "format", "accumulator")
    )


def lost(rows: Sequence[Record]) -> list[str]:
    """Lessons that no gate caught."""
    return [
        f"{r['op']} {r['backend']}/{r['kernel']} {r['format']}" for r in rows if not r["caught"]
    ]


def _passing(rows: Sequence[Record], field: str, tolerance: float) -> int:
    return sum(bool((r[field] or {}).get(f"{tolerance:g}")) for r in rows)


def sentence(rows: Sequence[Record]) -> str:
    """How many the gates catch, and how many the usual comparison lets through."""
    gone = lost(rows)
    text = f"the gates catch {len(rows) - len(gone)} of {len(rows)} lessons"
    through = " and ".join(
        f"{_passing(rows, 'allclose_ordinary', t)} with rtol = atol = {t:g}" for t in USUAL
    )
    text += f"; allclose on N(0, 1), as tests are usually written, passes {through}"
    return f"FAIL: {text}; not caught: {', '.join(gone)}" if gone else text


def table(rows: Sequence[Record], absent: Sequence[Record] = ()) -> Table:
    """The lessons; ``absent`` are those of ``refused``."""
    shown = Table(
        title="what the gates catch, and where the usual allclose (rtol = atol) passes: on the "
        "input that shows the mistake, and on N(0, 1)",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for head in ("operation", "lesson", "format", "shown by", "failed by"):
        shown.add_column(head, no_wrap=head != "failed by")
    shown.add_column("max abs err", justify="right", no_wrap=True)
    for where in ("there", "N(0, 1)"):
        for t in USUAL:
            shown.add_column(f"{where}\n{t:g}", justify="right", no_wrap=True)
    for r in rows:
        name = _name(r)
        if not r["caught"]:
            blank = [""] * (2 * len(USUAL))
            shown.add_row(r["op"], name, r["format"], "-", "[bold red]nothing[/]", "", *blank)
            continue
        error = number(r["max_abs_err"]) if r["max_abs_err"] is not None else "not finite"
        if r["allclose"] is None:  # a probe, whose outputs are compared bit for bit
            error = "-"
        close = [
            _cell((r[field] or {}).get(f"{t:g}"))
            for field in ("allclose", "allclose_ordinary")
            for t in USUAL
        ]
        by = ", ".join(r["failed_by"])
        shown.add_row(r["op"], name, r["format"], r["input"], by, error, *close)
    for r in absent:
        reason = escape(str(r["reason"]))
        shown.add_row(r["op"], _name(r), r["format"], "not run", reason, style="dim")
    return shown


def _name(record: Record) -> str:
    """``raw/no_max``; the accumulator is named unless it is fp32."""
    name = f"{record['backend']}/{record['kernel']}"
    narrow = record["accumulator"] != "fp32"
    return f"{name}, {record['accumulator']} acc" if narrow else name


def _cell(passes: bool | None) -> str:
    return "-" if passes is None else "[yellow]passes[/]" if passes else "fails"
