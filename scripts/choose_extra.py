#!/usr/bin/env python3
"""Print the extra that brings the right CuPy for the driver that is there, or nothing.

Runs before the environment exists, so with the standard library alone. The reason goes to stderr.
"""

import runpy
import sys
from pathlib import Path

DRIVER = Path(__file__).resolve().parents[1] / "gpulab" / "runtime" / "driver.py"


def main() -> None:
    driver = runpy.run_path(str(DRIVER), run_name="driver")
    extra, reason = driver["extra"](driver["query"]())
    print(f"{reason}: {extra or 'emulated device only, no CuPy'}", file=sys.stderr)
    if extra:
        print(extra)


if __name__ == "__main__":
    main()
