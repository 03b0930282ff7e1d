"""Write docs/formats.md from the format rows."""

from pathlib import Path

from gpulab.report.markdown import formats_markdown

PAGE = Path(__file__).resolve().parents[1] / "docs" / "formats.md"

if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(formats_markdown(), encoding="utf-8")
    print(f"wrote {PAGE}")
