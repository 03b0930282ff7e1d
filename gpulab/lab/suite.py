"""What ``gpulab run`` judges besides matmul, at which sizes, and the short table of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from gpulab.lab.render import number, verdict_cell

Record = dict[str, Any]

ROW_OPS = ("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy")


@dataclass(frozen=True)
class Section:
    """One operation at one size.

    Args:
        op: name of the operation.
        dims: its dims.
        formats: input formats, separated by commas; None: all.
    """

    op: str
    dims: Mapping[str, int]
    formats: str | None = None

    @property
    def shape(self) -> str:
        """``rows=9 cols=257``; dims that are 0 are left out."""
        return " ".join(f"{name}={value}" for name, value in self.dims.items() if value)


def _attention(**dims: int) -> dict[str, int]:
    """Causal, with a mask that hides every key from some queries, grouped heads and a tail: the
    dims at which every attention lesson shows."""
    plain = {
        "batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 33, "seq_k": 77, "head_dim": 32,
        "causal": 1, "window": 0, "bias_planes": 0, "mask_planes": 1,
    }  # fmt: skip
    return plain | dims


SMALL = {
    "emulated": [
        *(Section(op, {"rows": 9, "cols": 257}, "fp16") for op in ROW_OPS),
        Section("attention", _attention(), "fp16,e4m3"),
    ],
    "cuda": [
        *(Section(op, {"rows": 64, "cols": 4099}) for op in ROW_OPS),
        Section("attention", _attention(heads=4, kv_heads=2, seq_q=257, seq_k=333, head_dim=64)),
    ],
}
"""What ``gpulab run`` judges: rows with a tail, and every lesson that shows at so small a size."""

LARGE = {
    "emulated": [
        *(Section(op, {"rows": 16, "cols": 1000}) for op in ROW_OPS),
        *(Section(op, {"rows": 2, "cols": 40001}) for op in ROW_OPS),
        Section("attention", _attention(seq_q=129, seq_k=257, head_dim=80)),
    ],
    "cuda": [
        *(Section(op, {"rows": 8192, "cols": 4096}) for op in ROW_OPS),
        *(Section(op, {"rows": 128, "cols": 262144}) for op in ROW_OPS),
        Section("attention", _attention(batch=2, heads=16, kv_heads=4, seq_q=2048, seq_k=2048,
                                        head_dim=128, causal=1, mask_planes=0)),
    ],
}  # fmt: skip
"""What ``--full`` judges in addition."""


def sections(kind: str, full: bool) -> list[Section]:
    """The sections for a device kind (``cuda`` or ``emulated``)."""
    return SMALL[kind] + (LARGE[kind] if full else [])


def _highest(records: Sequence[Record], gate: str) -> float | None:
    """The largest share of a gate's bound; None where one is not finite."""
    shares = [r[gate]["fraction"] for r in records]
    return None if None in shares else max(shares)


def table(judged: Sequence[tuple[Section, Sequence[Record]]]) -> Table:
    """One line a kernel: the formats judged, and the largest share of each bound."""
    shown = Table(
        title="row operations and attention: the largest share of each bound over formats, input "
        "families and probes (gpulab bench NAME times them on a card)",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for head in ("operation", "kernel", "contract", "formats"):
        shown.add_column(head, no_wrap=True)
    for head in ("gate frac", "arith frac"):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    shown.add_column("dims")
    for section, records in judged:
        before = None
        rows = [r for r in records if r["verdict"] is not None and not r["lesson"]]
        for key in dict.fromkeys(_kernel(r) for r in rows):
            mine = [r for r in rows if _kernel(r) == key]
            backend, kernel, contract = key
            worst = next((r for r in mine if r["verdict"] != "PASS"), mine[0])
            shown.add_row(
                section.op if before != section else "",
                f"{backend}/{kernel}",
                contract or "",
                ", ".join(dict.fromkeys(r["format"] for r in mine)),
                number(_highest(mine, "contract_gate")),
                number(_highest(mine, "arithmetic_gate")),
                verdict_cell(worst),
                section.shape if before != section else "",
            )
            before = section
    return shown


def _kernel(record: Record) -> tuple[str, str, str | None]:
    return record["backend"], record["kernel"], record["contract"]
