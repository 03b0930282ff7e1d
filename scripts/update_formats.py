"""Write docs/formats.md from the format rows."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.report.markdown import formats_markdown

PAGE = Path(__file__).resolve().parents[1] / "docs" / "formats.md"

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(formats_markdown(), encoding="utf-8")
    print(f"wrote {PAGE}")
