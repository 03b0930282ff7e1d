"""Write what the emulated device says of the planted bugs into docs/faults.md."""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "emulated" / "bugs"))

import corpus

from gpulab.errors import FaultError, KernelTimeoutError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
BUDGET = 20_000
_PART = re.compile(r"(<!-- corpus:begin [^>]*-->\n).*?(<!-- corpus:end -->)", re.DOTALL)


def told() -> str:
    """A block a bug: its file and the message, folders left out."""
    lines = []
    for case in (c for c in corpus.cases() if c.fault):
        try:
            corpus.emulate(case, budget=BUDGET if case.fault == "timeout" else None)
        except (FaultError, KernelTimeoutError) as error:
            message = error.message.replace(f"{corpus.HERE}/", "")
            kind = error.details.get("fault", "timeout")
            lines.append(f"- `{case.source.name}`, {kind}: {message}")
        else:
            raise SystemExit(f"{case.label}: nothing was found")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its generated part as it should be."""
    return _PART.sub(lambda m: m[1] + told() + m[2], text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page(PAGE.read_text()))
    print(f"wrote {PAGE}")
