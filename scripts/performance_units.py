"""What scripts/card_performance.py records: its units, in order, and how each is measured."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpulab import registry
from gpulab.bench import ceilings, first_call, ladder, records, roofline, tune
from gpulab.bench.ceiling_kernels import Size
from gpulab.kernels.matmul import wgmma_tiles
from gpulab.lab import evaluate
from gpulab.lab.environment import environment
from gpulab.registry import Case
from gpulab.runtime.cache import Store
from gpulab.runtime.device import Device
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.telemetry import Telemetry

COSTS = Path(wgmma_tiles.__file__).parent / wgmma_tiles.COSTS_FILE
SEED = 0
DRY = {"m": 48, "n": 32, "k": 64}
"""The largest extents of a dry run."""

Record = dict[str, Any]


class HostClock:
    """What a dry run has for a card's clock: every event is a millisecond after the last."""

    l2_bytes = flush_bytes = 1

    def __init__(self) -> None:
        self.events = itertools.count(1)

    def record(self) -> float:
        return float(next(self.events))

    def passed(self, event: float) -> bool:
        return False

    def elapsed_ms(self, start: float, stop: float) -> float:
        return stop - start

    def flush(self) -> None: ...
    def synchronize(self) -> None: ...

    def host_ms(self) -> float:
        return 0.0

    def telemetry(self) -> Telemetry:
        return Telemetry(unavailable="no card")


@dataclass(frozen=True)
class Place:
    """Where a unit runs and writes.

    Args:
        device: the card, or the emulated device.
        clock: its clock.
        out: folder of the records.
        dry: small sizes; nothing is timed.
        ship: replace the shipped tile table.
    """

    device: Device
    clock: Any
    out: Path
    dry: bool
    ship: bool

    def again(self, store: Store) -> Device:
        """The device once more, compiling into a cache of its own."""
        if isinstance(self.device, EmulatedDevice):
            return EmulatedDevice(self.device.capability, store=store)
        from gpulab.runtime.cuda import CudaDevice

        return CudaDevice(store=store)

    def dims(self, m: int, n: int, k: int) -> dict[str, int]:
        wanted = {"m": m, "n": n, "k": k}
        return {d: min(x, DRY[d]) for d, x in wanted.items()} if self.dry else wanted


@dataclass(frozen=True)
class Unit:
    """A part that is recorded as a whole.

    Args:
        name: `file/part`; the part before the slash names the file.
        estimate_s: seconds on an H200 with 16 host cores, compilation included.
        work: makes its records.
    """

    name: str
    estimate_s: float
    work: Callable[[Place], list[Record]]

    @property
    def file(self) -> str:
        return self.name.split("/")[0] + ".jsonl"


def rows(*wanted: str) -> list[Case]:
    """Cases by `kernel format output [contract]`; an empty field or * is any."""
    found = []
    for text in wanted:
        kernel, fmt, output, *contract = text.split()
        found += [
            case
            for case in registry.cases("matmul", format=None if fmt == "*" else fmt)
            if kernel in ("*", case.spec.name)
            and output in ("*", case.variant.output)
            and (not contract or case.variant.contract == contract[0])
            and not case.variant.lesson
            and case.spec.backend != "numba"
            and case.spec.name != "simt"
        ]
    return sorted(dict.fromkeys(found), key=lambda case: case.spec.order)


SAME = ("* bf16 bf16", "* fp16 fp16")
HALVES = ("* bf16 *", "* fp16 *")
FP8 = ("wgmma e4m3 * fast", "wgmma e4m3 * promoted", "cublaslt e4m3 *")
FP32 = ("* fp32 *",)
TF32 = ("* tf32 *",)
GROUPS = {"16bit": HALVES, "tf32": TF32, "fp8": FP8, "fp32": FP32}
"""Rows that are timed in turns, each group with its libraries."""
AT_8192 = GROUPS | {"16bit": (*SAME, "mma bf16 fp32", "cublas bf16 fp32")}
BOTH = ("normal", "uniform")


def matmul(
    dims: tuple[int, int, int],
    wanted: tuple[str, ...],
    runs: int,
    families: tuple[str, ...],
    place: Place,
) -> list[Record]:
    """Rows and their libraries in one interleaved run, against the ceilings of this campaign."""
    found = evaluated(place, rows(*wanted), place.dims(*dims), runs=runs, families=families)
    return against_ceilings(place, found)


def evaluated(place: Place, cases: list[Case], dims: dict[str, int], **how: Any) -> list[Record]:
    return evaluate.evaluate_all(
        cases, place.device, dims, seed=SEED, **({"families": BOTH, "warmup": 2} | how)
    )


def against_ceilings(place: Place, found: list[Record]) -> list[Record]:
    path = place.out / "ceilings.jsonl"
    here = environment(place.device)
    measured = [
        c
        for c in (records.read(path) if path.exists() else [])
        if all(c["environment"][x] == here[x] for x in ("device_name", "driver", "date"))
    ]
    return roofline.with_fractions(found, measured)


def climb(size: int, place: Place) -> list[Record]:
    """The ladder's rungs and the library."""
    found = evaluated(
        place, ladder.rungs(), place.dims(size, size, size), families=("normal",), runs=7
    )
    return against_ceilings(place, ladder.with_gains(found))


def ceiling(place: Place) -> list[Record]:
    size = Size(1, 2, 1 << 18) if place.dry else None
    return ceilings.measure(place.device, place.clock, runs=2 if place.dry else 7, size=size)


def growth(k: int, place: Place) -> list[Record]:
    """Errors of fp8 by accumulation; nothing is timed."""
    dims = place.dims(512, 512, k)
    return evaluated(place, rows(*FP8), dims, measured=False)


def tuning(place: Place) -> list[Record]:
    """One record a kind and tile; the table they make."""
    here = environment(place.device) | {"multiprocessors": place.device.multiprocessors}
    if place.dry:
        reason = "tiles are timed on a card only"
        return [{"schema": 1, "kind": "tune", "verdict": None, "reason": reason}]
    count = place.device.multiprocessors or wgmma_tiles.H200_MULTIPROCESSORS
    table = tune.tune(place.device, place.clock, count)
    text = json.dumps({"environment": here, **table}, indent=1) + "\n"
    (place.out / COSTS.name).write_text(text)
    if place.ship:
        COSTS.write_text(text)
    about = {"schema": 1, "kind": "tune", "multiprocessors": count, "verdict": "PASS"}
    return [about | {"sums": kind, **row} for kind, found in table.items() for row in found]


def first(place: Place) -> list[Record]:
    """First, cached and later calls of the kernels of each generation."""
    generations = (
        "wgmma bf16 bf16",
        "wgmma e4m3 fp32 promoted",
        "mma bf16 fp32",
        "blocked fp32 fp32",
    )
    cases = rows(*generations[2:3] if place.dry else generations)
    dims, rounds = place.dims(1024, 1024, 1024), 1 if place.dry else 10
    return [first_call.measure(place.again, case, dims, rounds=rounds) for case in cases]


def sized(
    estimate_s: float,
    dims: tuple[int, int, int],
    wanted: tuple[str, ...],
    runs: int = 10,
    families: tuple[str, ...] = BOTH,
    part: str = "",
) -> Unit:
    name = f"matmul_large/{'x'.join(map(str, dims))}{part and '/' + part}"
    return Unit(name, estimate_s, partial(matmul, dims, wanted, runs, families))


def square(
    size: int, estimates: tuple[float, ...], groups: dict[str, tuple[str, ...]], **how: Any
) -> list[Unit]:
    """One unit a group."""
    parts = zip(estimates, groups.items(), strict=True)
    return [sized(s, (size,) * 3, wanted, part=name, **how) for s, (name, wanted) in parts]


UNITS = (
    Unit("ceilings/all", 10, ceiling),
    Unit("tune/all", 10, tuning),
    Unit("first_call/all", 10, first),
    *square(4096, (35, 15, 25, 15), GROUPS),
    *square(8192, (60, 30, 50, 40), AT_8192, runs=7, families=BOTH[:1]),
    *square(2048, (10, 6, 8, 6), GROUPS),
    *square(1024, (6, 4, 5, 5), GROUPS),
    Unit("ladder/4096", 30, partial(climb, 4096)),
    *(
        Unit(f"fp8_growth/{k}", s, partial(growth, k))
        for k, s in ((1024, 4), (8192, 5), (32768, 12))
    ),
    sized(55, (8192, 8192, 1024), SAME),
    sized(25, (4096, 7168, 2048), SAME),
    sized(15, (64, 8192, 8192), SAME),
    sized(25, (8191, 4095, 2049), HALVES),
    sized(110, (16384, 16384, 16384), SAME, runs=5, families=BOTH[:1]),
    Unit("ladder/8192", 60, partial(climb, 8192)),
)
"""In the order in which they are recorded."""
