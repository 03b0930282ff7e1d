"""Special registers.

Source: PTX ISA, chapter "Special Registers". Clocks count the interpreter's instructions, so that
runs repeat exactly; they say nothing about time on a card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulab.emulator.values import DTYPE, Array

if TYPE_CHECKING:
    from gpulab.emulator.state import State

KINDS = {
    **{f"%{name}.{axis}": "u32" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    **{
        f"%{name}.{axis}": "u32"
        for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
        for axis in "xyz"
    },
    "%cluster_ctarank": "u32", "%cluster_nctarank": "u32", "%is_explicit_cluster": "p",
    "%laneid": "u32", "%warpid": "u32", "%nwarpid": "u32", "%smid": "u32", "%nsmid": "u32",
    "%gridid": "u64", "%lanemask_eq": "u32", "%lanemask_le": "u32", "%lanemask_lt": "u32",
    "%lanemask_ge": "u32", "%lanemask_gt": "u32", "%clock": "u32", "%clock_hi": "u32",
    "%clock64": "u64", "%globaltimer": "u64", "%globaltimer_lo": "u32", "%globaltimer_hi": "u32",
    "%total_smem_size": "u32", "%dynamic_smem_size": "u32", "%aggr_smem_size": "u32",
    "WARP_SZ": "u32",
}  # fmt: skip

_CLOCKS = {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}


def _row(values: Array, kind: str) -> Array:
    return values.astype(DTYPE[kind])[None, :]


def read(state: State, name: str) -> Array:
    """The value of a special register, in the smallest shape that holds it."""
    kind = KINDS[name]
    if name in _CLOCKS:
        ticks = state.steps >> 32 if name.endswith("hi") else state.steps
        return np.array([[ticks & 0xFFFFFFFF if kind == "u32" else ticks]], DTYPE[kind])
    word = name[1:].partition(".")[0]
    axis = {"x": 0, "y": 1, "z": 2}.get(name[-1], 0)
    lane = np.arange(state.shape[0], dtype=np.int64) % 32
    if word == "tid":
        return state.thread_ids[axis].astype(np.uint32)[:, None]
    cluster = state.launch.kernel.cluster
    if word == "ctaid":
        return _row(state.block_ids[axis], "u32")
    if word == "clusterid":
        return _row(state.block_ids[axis] // cluster[axis], "u32")
    if word == "cluster_ctaid":
        return _row(state.block_ids[axis] % cluster[axis], "u32")
    if word == "cluster_ctarank":
        return _row(np.arange(state.shape[1]) % state.cluster, "u32")
    if word == "laneid":
        return lane.astype(np.uint32)[:, None]
    if word == "warpid":
        return (np.arange(state.shape[0]) // 32).astype(np.uint32)[:, None]
    if word.startswith("lanemask"):
        one = np.int64(1)
        masks = {
            "eq": one << lane,
            "lt": (one << lane) - 1,
            "le": (one << (lane + 1)) - 1,
            "gt": ~((one << (lane + 1)) - 1),
            "ge": ~((one << lane) - 1),
        }
        return (masks[word[-2:]] & 0xFFFFFFFF).astype(np.uint32)[:, None]
    single = {
        "ntid": state.launch.block[axis],
        "nctaid": state.launch.grid[axis],
        "nclusterid": state.launch.grid[axis] // cluster[axis],
        "cluster_nctaid": cluster[axis],
        "cluster_nctarank": state.cluster,
        "is_explicit_cluster": state.cluster > 1,
        "nwarpid": state.shape[0] // 32,
        "nsmid": 1,
        "total_smem_size": state.launch.shared_bytes,
        "aggr_smem_size": state.launch.shared_bytes,
        "dynamic_smem_size": state.launch.dynamic_bytes,
        "WARP_SZ": 32,
    }
    key = "WARP_SZ" if name == "WARP_SZ" else word
    return np.full((1, 1), single.get(key, 0), DTYPE[kind])
