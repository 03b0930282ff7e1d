"""``docs/formats.md``, generated from the rows; ``scripts/update_formats.py`` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from gpulab import arch
from gpulab.formats import codec
from gpulab.formats.packing import SCALE_RULES
from gpulab.report import render
from gpulab.report.capability import FAMILIES, capability_report
from gpulab.report.formats import format_records

HEADER = """# Number formats

Generated from `gpulab/formats/table.py` by `scripts/update_formats.py`; edit a row there, then run
it again. `gpulab formats VALUE` shows what each format stores of a value.
"""


def formats_markdown() -> str:
    """The whole page."""
    records = format_records()
    plain, blocked = render.split_records(records)
    names = [(r["format"], r["title"], r["bits"], r["bias"], r["ptx"], r["cpp"]) for r in plain]
    needs = [
        (r["format"], n["target"], n["family"], f"`{n['instruction']}`")
        for r in records
        for n in r["needs"]
    ]
    return "\n".join(
        [
            HEADER,
            "## Values\n",
            "s.e.m: sign, exponent and mantissa bits.",
            "tf32 occupies a 32-bit register; its bit layout is implementation defined.\n",
            _table(render.FORMAT_COLUMNS, [render.format_row(r) for r in plain]),
            "## Block formats\n",
            "A value is element (one of those named) times scale (times the second one, of the",
            "whole tensor); the largest and smallest values include the scales.\n",
            _table(render.BLOCK_COLUMNS, [render.block_row(r) for r in blocked]),
            "Power-of-two scales by rule, for the largest magnitude `amax` of a block:\n",
            *(f"- `{name}`: {_first_sentence(rule)}" for name, rule in SCALE_RULES.items()),
            "\n`nvfp4` rounds `amax` of the tensor over (6 x 448) to its fp32 tensor scale, and",
            "`amax` of a block over (6 x tensor scale) to its e4m3 scale.\n",
            "## Names and sources\n",
            _table(
                ("format", "what", "bits", "bias", "PTX", "CUDA C++", "source"),
                [(*n, r["source"]) for n, r in zip(names, plain, strict=True)],
            ),
            "## Rounding and special values\n",
            _edges(),
            "## Where tensor cores multiply it\n",
            "By the lab's kernels (`gpulab formats --capability X.Y` gives the reasons):\n",
            _table(("capability", *FAMILIES), _capabilities()),
            *_other_ways(),
            "Every instruction:\n",
            _table(("format", "from", "family", "instruction"), needs),
        ]
    )


def _capabilities() -> Iterable[Sequence[str]]:
    for capability in arch.EMULATED:
        lines = capability_report(capability)
        yield (
            arch.dotted(capability),
            *("yes" if line.supported else "no" for line in lines),
        )


def _other_ways() -> Iterable[str]:
    """Each no of a card that has another instruction family for the format."""
    for capability in arch.EMULATED:
        for line in capability_report(capability):
            if not line.supported and not line.instructions[0].startswith("mma.sync"):
                yield f"{arch.dotted(capability)} {line.name}: {line.reason}.\n"


def _edges() -> str:
    """The rules as the encoder's module states them."""
    text = inspect.cleandoc(codec.__doc__ or "").replace("``", "`")
    return text[text.index("Rules at the edges") : text.index("Sources:")].rstrip() + "\n"


def _first_sentence(rule: object) -> str:
    text = " ".join((inspect.getdoc(rule) or "").split())
    return text.partition(". ")[0].rstrip(".")


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(c) for c in line)} |" for line in lines) + "\n"


def _cell(value: object) -> str:
    return "-" if value is None else str(value).replace("|", "\\|")
