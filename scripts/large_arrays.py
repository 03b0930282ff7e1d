"""Run kernels on arrays past 2^31 elements on a card and compare every element.

    python scripts/large_arrays.py --out docs/results/large_arrays.jsonl
    python scripts/large_arrays.py --ops softmax --beyond 4294967296 --kernel online

No entry (a row; a batch entry of attention; a row of A and C) depends on another. So a kernel is
judged at a few entries first, whose number is prime; the large arrays repeat these, made on the
card; and each repetition of every output must have the bits of the judged one. A 32-bit offset
that wraps reads or writes another entry, or none.

One case of each kernel, in bf16 where it takes bf16. What a 32-bit offset does instead shows

    gpulab softmax --rows 1048673 --cols 4096 --kernel online,index32 --format bf16 --no-time

Exit code 0: every kernel holds; 1: not so; 7: no card.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab import ops, registry
from gpulab.errors import GpulabError
from gpulab.lab.environment import environment
from gpulab.lab.runner import KernelRunner
from gpulab.registry import Case
from gpulab.runtime.device import POISONS, Device
from gpulab.runtime.select import open_device

ROOT = Path(__file__).resolve().parents[1]
Dims = dict[str, int]
BEYOND = 1 << 31
FORMATS = ("bf16", "fp16", "fp32")
"""The first that a kernel takes."""

ROWS = ({"rows": 127, "cols": 4096},)
FEW: dict[str, tuple[Dims, ...]] = {
    "rmsnorm": ROWS,
    "layernorm": ROWS,
    "softmax": ROWS,
    "logsoftmax": ROWS,
    "crossentropy": (*ROWS, {"rows": 13, "cols": 50257}),
    "attention": (
        {
            "batch": 5,
            "heads": 8,
            "kv_heads": 8,
            "seq_q": 509,
            "seq_k": 512,
            "head_dim": 128,
            "causal": 1,
            "window": 0,
            "bias_planes": 0,
            "mask_planes": 0,
        },
    ),
    "matmul": ({"m": 127, "n": 16384, "k": 64}, {"m": 127, "n": 64, "k": 16384}),
}
"""The judged entries of each operation: a prime number of them along the first dim."""


def elements(case: Case, dims: Dims) -> int:
    """Of the largest array."""
    shapes = [p.dims for p in case.spec.params(case.variant) if p.role in ("in", "out")]
    return max(math.prod(dims[d] for d in shape) for shape in shapes)


def large(case: Case, few: Dims, beyond: int) -> Dims:
    """The dims at which a whole repetition lies beyond so many elements of the largest array, and
    one that is not whole beyond that."""
    along = ops.get(case.spec.op).dims[0]
    count, entry = few[along], elements(case, few) // few[along]
    return few | {along: (beyond // (entry * count) + 2) * count + 1}


def check(case: Case, device: Device, few: Dims, whole: Dims) -> dict[str, Any]:
    """The line of one kernel: judged at ``few``, its bits repeated at ``whole``."""
    op, started = ops.get(case.spec.op), time.monotonic()
    line: dict[str, Any] = {
        "schema": 1,
        "op": case.spec.op,
        "kernel": case.label,
        "judged": few,
        "dims": whole,
        "elements": elements(case, whole),
    }
    refusal = case.refusal(device.target, device.kind, whole)
    if refusal is not None:
        return line | {"verdict": None, "reason": refusal}
    small = KernelRunner(case, device, few)
    judged = op.judge(case.variant, few, small, capability=device.capability)
    inputs = op.stored_inputs(case.variant, few, "normal", 0)
    right = small(inputs).outputs
    runner = KernelRunner(case, device, whole)
    sent, out = runner.upload(inputs), runner.outputs(POISONS[0])
    try:
        runner.bind({**sent, **out})()
        device.synchronize()
        wrong = [name for name, array in out.items() if not device.holds(array, right[name])]
        changed = [name for name, array in sent.items() if not device.holds(array, inputs[name])]
    finally:
        device.free(*sent.values(), *out.values())
    reasons = [] if judged.verdict == "PASS" else [f"at the judged size: {judged.reason}"]
    reasons += [f"{name} is not the judged result repeated" for name in wrong]
    reasons += [f"the kernel wrote to {name}" for name in changed]
    return line | {
        "verdict": "FAIL" if reasons else "PASS",
        "reason": "; ".join(reasons) or None,
        "seconds": round(time.monotonic() - started, 1),
    }


def chosen(op: str, kernel: str | None) -> Iterator[Case]:
    """One case of each kernel of the lab's own, no lesson."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in registry.cases(op, kernel=kernel):
        if case.spec.backend != "library" and not case.variant.lesson:
            found.setdefault((case.spec.backend, case.spec.name), []).append(case)
    yield from (min(cases, key=_preferred) for cases in found.values())


def _preferred(case: Case) -> int:
    fmt = case.variant.format
    return FORMATS.index(fmt) if fmt in FORMATS else len(FORMATS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default=",".join(FEW))
    parser.add_argument("--kernel", default=None, help="only kernels of these names")
    parser.add_argument("--beyond", type=int, default=BEYOND, help="elements of the largest array")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    try:
        device: Any = open_device("cuda")
        cases = [(c, few) for op in given.ops.split(",") for c in chosen(op, given.kernel)
                 for few in FEW[op]]  # fmt: skip
    except GpulabError as error:
        print(f"large_arrays: {error.message}", file=sys.stderr)
        return error.exit_code
    code, around = 0, environment(device)
    with given.out.open("w") as out:
        for case, few in cases:
            try:
                line = check(case, device, few, large(case, few, given.beyond))
            except GpulabError as error:
                line = {"op": case.spec.op, "kernel": case.label, "verdict": "FAIL",
                        "reason": error.message}  # fmt: skip
            shown = f"{line.get('elements', 0):.4g} elements, {line.get('seconds')} s"
            name = f"{line['op']} {line['kernel']}"
            print(f"{name}: {line['verdict']} ({shown}) {line['reason'] or ''}", flush=True)
            device.cupy.get_default_memory_pool().free_all_blocks()
            out.write(json.dumps(line | {"environment": around}) + "\n")
            out.flush()
            code = 1 if line["verdict"] == "FAIL" else code
    return code


if __name__ == "__main__":
    sys.exit(main())
