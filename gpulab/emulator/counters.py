"""Counted work of a launch: what a profiler would count, with no card.

Every number is counted from the PTX that the kernel compiles to. ptxas then turns PTX into the
card's own instructions (SASS): it may fuse, vectorise or drop some, so instruction counts here
are not the card's. Memory traffic survives that: which sectors a kernel asks for and which banks
it hits are decided by its addresses. Keys spelled like an ncu metric are what that metric shows
for the same launch; all the others are this device's own. ``KEYS`` gives unit and meaning of each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.arrivals import of_mbarrier
from gpulab.emulator.coalescing import (
    SECTOR,
    columns_of,
    copied_sectors,
    sectors,
    warp_rows,
    wavefronts,
)
from gpulab.emulator.observe import Access, Boxes, Lanes, LaunchInfo, Location, Observer, Scope
from gpulab.emulator.opclass import CLASSES, classify, matrix_product

_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
_WAVEFRONTS = "shared_{}_wavefronts"
_FMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
_RATIO = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{}.ratio"


@dataclass(frozen=True)
class Key:
    """Unit and meaning of one counter."""

    unit: str
    meaning: str


def _per_direction() -> dict[str, Key]:
    table: dict[str, Key] = {}
    for op, word in (("ld", "load"), ("st", "store")):
        table |= {
            _GLOBAL.format("requests", op): Key("requests", f"global {word}s, one a warp"),
            _GLOBAL.format("sectors", op): Key("sectors", f"32-byte sectors global {word}s touch"),
            _RATIO.format(op): Key("sectors/request", "the two above, divided"),
            f"global_{word}_bytes": Key("bytes", f"bytes that lanes {word}"),
            f"local_{word}_bytes": Key("bytes", f"bytes of local memory that lanes {word}"),
            f"shared_{word}_requests": Key("requests", f"shared {word}s, one a warp"),
            _WAVEFRONTS.format(word): Key("wavefronts", f"passes the shared {word}s take"),
            _CONFLICTS.format(op): Key("wavefronts", f"passes of shared {word}s beyond the least"),
            f"shared_{word}_bytes": Key("bytes", f"bytes that lanes {word}"),
        }
    return table


KEYS: dict[str, Key] = {
    "instructions": Key("warp instructions", "PTX instructions executed, counted once a warp"),
    "thread_instructions": Key("thread instructions", "the same, once a thread"),
    "partial_warp_instructions": Key("warp instructions", "with some lanes of the warp idle"),
    "branches": Key("warp instructions", "conditional branches, once a warp"),
    "divergent_branches": Key("warp instructions", "branches at which a warp's lanes part"),
    "barriers": Key("barriers", "block barriers passed, once a block"),
    "warp_syncs": Key("warp instructions", "meetings inside a warp (bar.warp.sync, shfl, vote)"),
    "fences": Key("warp instructions", "memory fences"),
    _FMA: Key("thread instructions", "float32 fused multiply-adds (fma.*.f32)"),
    "tensor_products": Key("multiply-adds", "M*N*K over all matrix instructions"),
    "smsp__inst_executed_op_ldsm.sum": Key("warp instructions", "ldmatrix"),
    "smsp__inst_executed_op_ldgsts.sum": Key("warp instructions", "cp.async copies"),
    **_per_direction(),
    "global_atomic_requests": Key("requests", "atomics on global memory, one a warp"),
    "global_atomic_sectors": Key("sectors", "32-byte sectors they touch"),
    "shared_atomic_requests": Key("requests", "atomics on shared memory, one a warp"),
    "async_copy_requests": Key("requests", "cp.async copies that read, one a warp, as above"),
    "async_copy_sectors": Key("sectors", "32-byte sectors they read, as above"),
    "async_copy_bytes": Key("bytes", "bytes they read"),
    "async_copy_wavefronts": Key("wavefronts", "passes of their writes to shared memory"),
    "async_copy_bank_conflicts": Key("wavefronts", "passes of those beyond the least"),
    "tensor_copy_boxes": Key("boxes", "tensor copies (TMA), loads and stores"),
    "tensor_copy_sectors": Key("sectors", "32-byte sectors of global memory they touch"),
    "tensor_copy_bytes": Key("bytes", "bytes they move, without what lies outside of a matrix"),
    "global_sector_bytes": Key("bytes", "32 times all sectors: what L1 and TMA are asked to move"),
}
"""Every key of fixed name. Further keys: ``instructions.CLASS`` (warp instructions of a class of
``opclass.CLASSES``), ``opcode.FULL`` (of one PTX opcode), ``tensor_products.TYPES``."""


class Counters(Observer):
    """Counts; ``end`` returns a flat dict of ints (and the two ratios)."""

    def begin(self, info: LaunchInfo) -> None:
        """Start from zero."""
        self._n: Counter[str] = Counter()
        self._opcodes: Counter[str] = Counter()
        self._copied: list[Access] = []

    def instruction(self, opcode: str, lanes: Lanes, location: Location) -> None:
        """Count one executed instruction."""
        self._n["instructions"] += lanes.warps
        self._n["thread_instructions"] += lanes.count
        self._n["partial_warp_instructions"] += lanes.partial_warps
        self._opcodes[opcode] += lanes.warps
        if opcode.startswith("fma.") and opcode.endswith(".f32"):
            self._n[_FMA] += lanes.count

    def branch(self, lanes: Lanes, taken: NDArray[np.bool_], location: Location) -> None:
        """Count a branch, and the warps it splits."""
        self._n["branches"] += lanes.warps
        jumping, all_lanes = lanes.narrowed(np.atleast_2d(taken)).per_warp, lanes.per_warp
        split = (jumping > 0) & (jumping < all_lanes)
        columns = split.shape[1]
        self._n["divergent_branches"] += int(split.sum()) * (len(lanes.blocks) // columns)

    def warp_sync(
        self, lanes: Lanes, members: NDArray[np.uint32], opcode: str, location: Location
    ) -> None:
        """Count a meeting inside warps."""
        self._n["warp_syncs"] += lanes.warps

    def barrier(
        self, blocks: NDArray[np.int64], location: Location, participants: Lanes | None = None
    ) -> None:
        """Count a block barrier."""
        self._n["barriers"] += len(blocks)

    def boxes(self, boxes: Boxes) -> None:
        """Count tensor copies."""
        last = (boxes.address + boxes.nbytes - 1) // SECTOR
        self._n["tensor_copy_boxes"] += boxes.count
        self._n["tensor_copy_sectors"] += int((last - boxes.address // SECTOR + 1).sum())
        self._n["tensor_copy_bytes"] += int(boxes.nbytes.sum())

    def fence(self, lanes: Lanes, scope: Scope, location: Location) -> None:
        """Count a fence."""
        self._n["fences"] += lanes.warps

    def access(self, access: Access) -> None:
        """Count one memory instruction."""
        if access.lanes.count == 0 or access.phase == "land" or of_mbarrier(access):
            return
        if access.phase == "issue":
            self._copy(access)
        elif access.space == "global" and access.asynchronous:
            self._copied.append(access)
        elif access.space == "global":
            self._global(access)
        elif access.space == "shared":
            self._shared(access)
        elif access.kind != "atomic":
            self._n[f"local_{access.kind}_bytes"] += access.nbytes * access.lanes.count

    def _global(self, access: Access) -> None:
        rows, active, weight = warp_rows(access)
        touched, requests = sectors(rows, active) * weight, access.lanes.warps
        moved = access.nbytes * access.lanes.count
        if access.kind == "atomic":
            self._n["global_atomic_requests"] += requests
            self._n["global_atomic_sectors"] += touched
        else:
            op = "ld" if access.kind == "load" else "st"
            self._n[_GLOBAL.format("requests", op)] += requests
            self._n[_GLOBAL.format("sectors", op)] += touched
            self._n[f"global_{access.kind}_bytes"] += moved

    def _shared(self, access: Access) -> None:
        requests, kind = access.lanes.warps, access.kind
        if kind == "atomic":
            self._n["shared_atomic_requests"] += requests
            return
        rows, active, weight = warp_rows(access)
        load = kind == "load"
        passes, conflicts = wavefronts(rows, active, access.nbytes, load=load)
        if access.opcode.startswith("ldmatrix"):
            self._n["smsp__inst_executed_op_ldsm.sum"] += requests
        self._n[f"shared_{kind}_requests"] += requests
        self._n[_WAVEFRONTS.format(kind)] += passes * weight
        self._n[_CONFLICTS.format("ld" if load else "st")] += conflicts * weight
        self._n[f"shared_{kind}_bytes"] += access.nbytes * access.lanes.count

    def _copy(self, issued: Access) -> None:
        """An asynchronous copy: what its lanes read, told just before, and where they write."""
        rows, active, weight = warp_rows(issued)
        passes, conflicts = wavefronts(rows, active, issued.nbytes, load=False, coalesce=False)
        self._n["smsp__inst_executed_op_ldgsts.sum"] += issued.lanes.warps
        self._n["async_copy_wavefronts"] += passes * weight
        self._n["async_copy_bank_conflicts"] += conflicts * weight
        read, self._copied = self._copied, []
        self._n["async_copy_bytes"] += sum(part.nbytes * part.lanes.count for part in read)
        if read:
            columns = max(columns_of(part) for part in (issued, *read))
            written, _, weight = warp_rows(issued, columns)
            reads, source = np.zeros(written.shape, np.bool_), np.zeros_like(written)
            for part in read:
                at, live, _ = warp_rows(part, columns)
                reads |= True if live is None else live
                source = at if live is None else np.where(live, at, source)
            # A copy that only fills with zeros asks global memory for nothing.
            self._n["async_copy_requests"] += int(reads.any(axis=1).sum()) * weight
            copied = copied_sectors(source, reads, written, issued.nbytes)
            self._n["async_copy_sectors"] += copied * weight

    def end(self) -> dict[str, Any]:
        """All counters; every fixed key is there, zero where nothing happened."""
        n = self._n
        out: dict[str, Any] = {key: n[key] for key in KEYS}
        for what in ("requests", "sectors"):  # the profiler counts cp.async among the loads
            out[_GLOBAL.format(what, "ld")] += n[f"async_copy_{what}"]
        for op in ("ld", "st"):
            requests = out[_GLOBAL.format("requests", op)]
            out[_RATIO.format(op)] = (
                out[_GLOBAL.format("sectors", op)] / requests if requests else 0.0
            )
        touched = sum(out[_GLOBAL.format("sectors", op)] for op in ("ld", "st"))
        touched += n["global_atomic_sectors"] + n["tensor_copy_sectors"]
        out["global_sector_bytes"] = SECTOR * touched
        classes = dict.fromkeys(CLASSES, 0)
        products: Counter[str] = Counter()
        for opcode, warps in self._opcodes.items():
            classes[classify(opcode)] += warps
            if (product := matrix_product(opcode)) is not None:
                products[product[1]] += product[0] * warps
        out["tensor_products"] = sum(products.values())
        out |= {f"tensor_products.{types}": count for types, count in sorted(products.items())}
        out |= {f"instructions.{name}": count for name, count in classes.items() if count}
        out |= {f"opcode.{name}": count for name, count in sorted(self._opcodes.items())}
        return out
