"""How near a kernel that is bound by memory comes to moving its bytes, and what stands in the way.

Beside the rows, in the same turns, the card copies (or reads) as many bytes as a row moves, from
and to arrays of its own that rotate like the row's: by kernels that compute nothing, with one to
eight accesses of a thread on their way, and copies by the driver too. Rows are compared with the
fastest of these; what is missing is the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from rich.table import Table

from gpulab.bench import ceiling_kernels
from gpulab.bench.ceilings import Bound
from gpulab.lab.measure import MakeYardstick, Yardstick
from gpulab.lab.render import case_name, number
from gpulab.runtime.device import Device
from gpulab.runtime.timing import Clock, Subject, rotation_sets

Record = dict[str, Any]
Traffic = Literal["copy", "read"]


def traffic(op: str) -> Traffic:
    """What an operation's bytes are compared with: cross entropy writes next to nothing."""
    return "read" if op == "crossentropy" else "copy"


def yardstick(of: Traffic) -> MakeYardstick:
    """Makes what is timed beside rows: half of their bytes read and half written, or all read."""
    return partial(_make, of)


def least_bytes(of: Traffic, multiprocessors: int) -> int:
    """One access of every thread: the least that the kernel can be asked for."""
    threads = ceiling_kernels.MEMORY_THREADS
    if of == "read":
        threads *= multiprocessors * ceiling_kernels.BLOCKS_AN_SM["read"]
    else:
        threads *= max(ceiling_kernels.ACCESSES[of])
    return threads * ceiling_kernels.PIECE_BYTES


def _make(of: Traffic, device: Device, clock: Clock, moved_bytes: int) -> Yardstick:
    multiprocessors = device.multiprocessors or 1
    wanted = moved_bytes if of == "read" else moved_bytes // 2
    least = least_bytes(of, multiprocessors)
    size = ceiling_kernels.Size(multiprocessors, 1, max(1, wanted // least) * least)
    kernels = ceiling_kernels.memory(of)
    work = kernels[0].work(size)
    sets = rotation_sets(work.moved_bytes, clock.l2_bytes)
    bound = [Bound(device, kernels[0], work) for _ in range(sets)]
    ways = {}
    for kernel in kernels:
        plan = kernel.work(size).plan
        ways[_way(kernel)] = [each.otherwise(kernel, plan) for each in bound]
    if of == "copy" and device.kind == "cuda":
        ways["the driver's copy"] = [_driver_copy(each) for each in bound]

    def free() -> None:
        for each in bound:
            each.free()

    def subject(launches: Sequence[Callable[[], object]]) -> Subject:
        return Subject(
            launch=lambda i: launches[i](),
            sets=sets,
            set_bytes=work.moved_bytes,
            refill=lambda i: bound[i].refill(i),
            verify=lambda i: bound[i].verify(),
        )

    return Yardstick(of, work.moved_bytes, {w: subject(x) for w, x in ways.items()}, free)


def _way(kernel: ceiling_kernels.Ceiling) -> str:
    return f"{kernel.accesses} access{'es' if kernel.accesses > 1 else ''} a thread"


def _driver_copy(bound: Bound) -> Callable[[], object]:
    from gpulab.runtime import card_arrays

    arrays = (bound.output, bound.inputs[0])
    return bound.device.bind_library("a copy", partial(card_arrays.copy, *arrays), arrays)


def table(records: Sequence[Record]) -> Table:
    """What limits each timed row: its share of the bandwidth, and what its code leaves room for."""
    of = next((r["bandwidth"]["of"] for r in records if r.get("bandwidth")), "copy")
    shown = Table(
        title=f"what limits each: share of the bandwidth of a {of} of as many bytes, the fastest "
        "of several that are timed in turns with it, and the warps an SM holds",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for head in ("case", "kernel"):
        shown.add_column(head, no_wrap=True)
    for head in ("GB/s", f"{of} GB/s", "share", "registers", "shared", "occupancy"):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("limited by", no_wrap=True)
    shown.add_column(f"fastest {of}", no_wrap=True)
    for r in records:
        beside = r.get("bandwidth")
        if beside is None:
            continue
        used = r.get("resources")
        shown.add_row(
            case_name(r),
            f"{r['backend']}/{r['kernel']}",
            number(r["gb_per_s"], 4),
            number(beside["gb_per_s"], 4),
            f"{beside['fraction']:.3f}",
            *(
                ["-"] * 4
                if used is None
                else [
                    str(used["registers"]),
                    str(used["shared_bytes"]),
                    f"{used['occupancy']:.0%}",
                    ", ".join(used["occupancy_limited_by"]),
                ]
            ),
            beside["way"],
        )
    return shown
