"""What an instruction costs on the emulated device, and how long whole kernels take.

    OMP_NUM_THREADS=1 python scripts/measure_emulator.py   # measure, record, write the tables
    python scripts/measure_emulator.py --page              # write the tables of what is recorded

The record is docs/results/emulator_costs.jsonl: microseconds for one PTX instruction over 32, 1,024
and 65,536 lanes, and seconds for the matmul kernels of the lab, all of them processor time of one
thread. docs/emulator.md shows it in two tables. Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab import registry
from gpulab.emulator.machine import Machine
from gpulab.formats import encode
from gpulab.lab.environment import environment
from gpulab.lab.runner import KernelRunner
from gpulab.runtime.emulated import EmulatedDevice

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "results" / "emulator_costs.jsonl"
PAGE = ROOT / "docs" / "emulator.md"

ADA, HOPPER = (8, 9), (9, 0)
SHAPES = ((1, 32), (1, 1024), (256, 256))
"""Blocks, and threads of each."""
SIZES = (64, 256, 1024)
REPEATS = 10

Record = dict[str, Any]

# name -> instruction with {d} and {s} for destination and source numbers
INSTRUCTIONS = {
    "add.s32": "add.s32 %r{d}, %r{s}, %r1;",
    "mad.lo.s32": "mad.lo.s32 %r{d}, %r{s}, %r1, %r2;",
    "mul.wide.s32": "mul.wide.s32 %q{d}, %r1, %r2;",
    "setp.lt.s32": "setp.lt.s32 %p{d}, %r1, %r2;",
    "shf.l.wrap.b32": "shf.l.wrap.b32 %r{d}, %r{s}, %r1, %r2;",
    "add.f32": "add.f32 %f{d}, %f{s}, %f1;",
    "fma.rn.f32": "fma.rn.f32 %f{d}, %f1, %f2, %f{s};",
    "fma.rz.f32": "fma.rz.f32 %f{d}, %f1, %f2, %f{s};",
    "div.rn.f32": "div.rn.f32 %f{d}, %f1, %f2;",
    "ex2.approx.ftz.f32": "ex2.approx.ftz.f32 %f{d}, %f1;",
    "fma.rn.f64": "fma.rn.f64 %e{d}, %e1, %e2, %e{s};",
    "cvt.f32.f16": "cvt.f32.f16 %f{d}, %h1;",
    "cvt.rn.f16.f32": "cvt.rn.f16.f32 %h{d}, %f1;",
    "fma.rn.f16x2": "fma.rn.f16x2 %r{d}, %r1, %r2, %r{s};",
    "cvt.rn.f16x2.e4m3x2": "cvt.rn.f16x2.e4m3x2 %r{d}, %h1;",
    "ld.global.f32": "ld.global.f32 %f{d}, [%q1];",
    "st.global.f32": "st.global.f32 [%q1], %f1;",
    "ld.shared.f32 (row by thread)": "ld.shared.f32 %f{d}, [%r3];",
    "st.shared.f32 (row by thread)": "st.shared.f32 [%r3], %f1;",
    "shfl.sync.bfly.b32": "shfl.sync.bfly.b32 %r{d}, %r{s}, 1, 31, -1;",
    "vote.sync.ballot.b32": "vote.sync.ballot.b32 %r{d}, %p1, -1;",
    "atom.global.add.u32": "atom.global.add.u32 %r{d}, [%q1], %r1;",
    "mma.sync.m16n8k16 f16 (a warp)": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{{%f4, %f5, %f6, %f7}}, {{%r4, %r5, %r6, %r7}}, {{%r4, %r5}}, {{%f4, %f5, %f6, %f7}};",
}

HEAD = """.version 8.7
.target sm_90
.address_size 64
.visible .entry one(.param .u64 data) {
.reg .b32 %r<200>; .reg .b64 %q<200>; .reg .f32 %f<200>; .reg .f64 %e<200>; .reg .b16 %h<200>;
.reg .pred %p<200>;
.shared .align 4 .b8 tile[4096];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, tile;
mad.lo.u32 %r3, %r1, 4, %r3; mad.lo.u32 %r4, %r2, 1024, %r1;
ld.param.u64 %q1, [data]; mad.wide.u32 %q1, %r4, 4, %q1;
ld.global.f32 %f1, [%q1]; cvt.rn.f16.f32 %h1, %f1; add.f32 %f2, %f1, %f1; st.shared.f32 [%r3], %f1;
cvt.f64.f32 %e1, %f1; add.f64 %e2, %e1, %e1; setp.gt.f32 %p1, %f1, 0f00000000;
add.s32 %r1, %r1, %r2; add.s32 %r2, %r2, %r1;
mov.b32 %r4, {%h1, %h1}; mov.b32 %r5, %r4; mov.b32 %r6, %r4; mov.b32 %r7, %r4;
mov.b32 %r1, %r4; mov.b32 %r2, %r4;
mov.f32 %f4, %f1; mov.f32 %f5, %f1; mov.f32 %f6, %f1; mov.f32 %f7, %f1;
mov.f32 %f50, %f1; mov.f64 %e50, %e1; mov.b32 %r50, %r4;
bar.sync 0;
"""


def cost(text: str, blocks: int, threads: int) -> float:
    """Microseconds of one instruction: what twice as many of them add, best of some pairs."""
    repeats = 64 if blocks > 1 else 256
    machine = Machine(HOPPER)
    count = max(blocks * 1024, 1 << 18)
    data = machine.alloc(4 * count, "data")
    machine.write(data, np.random.default_rng(0).standard_normal(count).astype(np.float32))
    programs = []
    for total in (repeats, 2 * repeats):
        lines = [text.format(d=51 + i % 140, s=50 + i % 140) for i in range(total)]
        programs.append(machine.load(HEAD + "\n".join(lines) + "\nret;\n}"))
    best = [1e9, 1e9]
    for _ in range(REPEATS):
        for which, program in enumerate(programs):
            start = time.process_time()  # of this one thread: other processes do not count
            machine.launch(program, "one", (blocks,), (threads,), [np.uint64(data).tobytes()])
            best[which] = min(best[which], time.process_time() - start)
    return 1e6 * (best[1] - best[0]) / repeats


def instructions() -> Iterator[Record]:
    """What each instruction costs, in microseconds by shape."""
    for name, text in INSTRUCTIONS.items():
        took = [cost(text, *shape) for shape in SHAPES]
        yield {"kind": "instruction", "name": name, "us": took} | around(EmulatedDevice(HOPPER))


def kernels() -> Iterator[Record]:
    """What the matmul kernels take, in seconds by size (None: not measured)."""
    rng = np.random.default_rng(0)
    for case in registry.cases("matmul"):
        device = EmulatedDevice(case.spec.only_capability or ADA)
        dims = {"m": 64, "n": 64, "k": 64}
        if case.refusal(device.capability, "emulated", dims) or case.variant.lesson:
            continue
        took = [
            matmul(device, case, size, rng) if size <= 256 or wanted(case) else None
            for size in SIZES
        ]
        yield {"kind": "kernel", "name": case.label, "seconds": took} | around(device)


def wanted(case: registry.Case) -> bool:
    """Kernels worth the time at 1024."""
    chosen = case.spec.name in ("mma", "simt", "wgmma")
    return chosen and case.variant.format in ("fp32", "fp16")


def matmul(
    device: EmulatedDevice, case: registry.Case, size: int, rng: np.random.Generator
) -> float:
    """Processor seconds of the second launch (at 1024 of the first), its steps included."""
    runner = KernelRunner(case, device, {"m": size, "n": size, "k": size})
    stored = {n: encode(case.variant.format, rng.standard_normal((size, size))) for n in "ab"}
    arrays = {**runner.upload(stored), **runner.outputs()}
    launch = runner.bind(arrays)
    took = 0.0
    for _ in range(2 if size < 1024 else 1):
        start = time.process_time()
        launch()
        took = time.process_time() - start
    device.free(*arrays.values())
    return took


def processor() -> str:
    """As the system names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def around(device: EmulatedDevice) -> Record:
    """What is emulated, by what."""
    return {"environment": environment(device) | {"processor": processor()}}


def tables(records: list[Record]) -> str:
    """What was measured, in Markdown."""
    where = records[0]["environment"]
    lines = [
        f"Processor time of one thread, best of {REPEATS}; {where['processor']}, Python "
        f"{where['python']}, NumPy {where['numpy']},",
        f"{where['date']} (`docs/results/{RECORD.name}`, by `scripts/{Path(__file__).name}`).",
        "",
        "| instruction | " + "".join(f"{b * t:,} lanes, us | " for b, t in SHAPES) + "ns a lane |",
        "| --- |" + " ---: |" * (len(SHAPES) + 1),
    ]
    blocks, threads = SHAPES[-1]
    for r in (r for r in records if r["kind"] == "instruction"):
        *few, many = r["us"]
        cells = [*(f"{us:.1f}" for us in few), f"{many:.0f}"]
        lines.append(
            f"| {r['name']} | {' | '.join(cells)} | {1e3 * many / (blocks * threads):.2f} |"
        )
    lines += [
        "",
        "Whole kernels, processor seconds of the second launch (the largest size: of the first):",
        "",
        f"| matmul kernel (capability 8.9; Hopper's: 9.0) | {' | '.join(map(str, SIZES))} |",
        "| --- |" + " ---: |" * len(SIZES),
    ]
    for r in (r for r in records if r["kind"] == "kernel"):
        cells = ["-" if s is None else f"{s:.3f}" for s in r["seconds"]]
        lines.append(f"| {r['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(text: str, records: list[Record]) -> str:
    """The page with the tables of these records between its markers."""
    pattern = re.compile(r"(<!-- costs:begin [^>]*-->\n).*?(<!-- costs:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{PAGE.name} has no markers of the costs")
    return pattern.sub(lambda m: m[1] + tables(records) + m[2], text)


def read() -> list[Record]:
    """What is recorded."""
    return [json.loads(line) for line in RECORD.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="measure nothing")
    if not parser.parse_args().page:
        found = [{"schema": 1, **record} for record in (*instructions(), *kernels())]
        RECORD.write_text("".join(json.dumps(r) + "\n" for r in found))
    PAGE.write_text(page(PAGE.read_text(), read()))


if __name__ == "__main__":
    main()
