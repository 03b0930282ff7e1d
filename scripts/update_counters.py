"""Write the table of counters into docs/counters.md."""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.emulator.counters import KEYS
from gpulab.emulator.opclass import CLASSES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "counters.md"
_PART = re.compile(r"(<!-- keys:begin [^>]*-->\n).*?(<!-- keys:end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with its tables as they should be."""
    rows = ["| key | unit | what |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {key.unit} | {key.meaning} |" for name, key in KEYS.items()]
    rows += ["", "| class | what is in it |", "| --- | --- |"]
    rows += [f"| {name} | {what} |" for name, what in CLASSES.items()]
    return _PART.sub(lambda m: m[1] + "\n".join(rows) + "\n" + m[2], text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page(PAGE.read_text()))
    print(f"wrote {PAGE}")
