"""Run every kernel once on a card and write the digests of its output bits.

    python scripts/record_digests.py --out docs/results/emulated_vs_card.jsonl

Each kernel runs compiled for the card and, where a lower target exists, as code for that target
(loaded through the driver or nvJitLink), because the emulated device must equal those too. Lines
that the file has are kept and their runs left out, so that an interrupted recording goes on.
tests/emulated/test_equals_card.py computes the same lines without a card and compares.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab import arch
from gpulab.bench import records
from gpulab.lab.environment import environment
from gpulab.lab.equality import SIZES, digests, run_of
from gpulab.runtime.select import open_device

TARGETS = ("own", "8.0", "7.5", "8.9")
"""Code for the device itself, then for older capabilities."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "emulated"], default="cuda")
    parser.add_argument("--capability", default=None, help="of the emulated device, as 9.0")
    parser.add_argument("--ops", default=",".join(SIZES), help="only these, in this order")
    parser.add_argument("--targets", default=",".join(TARGETS), help="only code for these")
    arguments = parser.parse_args()
    capability = arch.parse(arguments.capability) if arguments.capability else None
    there = records.read(arguments.out) if arguments.out.exists() else []
    known = {run_of(line) for line in there}
    count = 0
    with arguments.out.open("a") as out:
        for name in arguments.targets.split(","):
            target = None if name == "own" else arch.parse(name)
            device = open_device(arguments.device, capability=capability, target=target)
            if target is not None and target >= device.capability:
                continue
            around = environment(device)
            for op in arguments.ops.split(","):
                for line in digests(device, op, SIZES[op], known=known):
                    out.write(json.dumps(line | {"environment": around}) + "\n")
                    out.flush()
                    count += 1
    print(f"{count} new digests in {arguments.out}")


if __name__ == "__main__":
    main()
