"""Records as measurements leave them, for tests of the pages made of them."""

import json

AROUND = {"device_name": "NVIDIA H200", "driver": "580.1", "nvrtc": "13.0", "date": "2030-01-02"}


def row(side=4096, kernel="wgmma", fmt="bf16", output="bf16", ratio=1.02, **fields):
    return {
        "schema": 1, "op": "matmul", "kernel": kernel, "backend": "raw", "format": fmt,
        "accumulator": "fp32", "output": output, "contract": "", "lesson": False,
        "dims": {"m": side, "n": side, "k": side}, "verdict": "PASS", "reason": None,
        "max_abs_err": 0.0123, "contract_gate": {"fraction": 0.0217},
        "arithmetic_gate": {"fraction": 0.417}, "tflops": 711.7,
        "time_ms": {"median": 0.1931, "min": 0.1925, "p90": 0.1972},
        "gb_per_s": 521.0, "vs_library": {"ratio": ratio},
        "timing": {"telemetry_after": {"sm_clock_mhz": 1755, "power_w": 689.0}},
        "roofline": {"fraction": 0.8761, "binds": "wgmma bf16"}, "environment": AROUND,
    } | fields  # fmt: skip


def write(folder, name, *found):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in found))


def table_of(text, start):
    """Cells of the lines that begin with a cell."""
    lines = [[c.strip() for c in x.strip("|").split("|")] for x in text.splitlines() if "|" in x]
    return [cells for cells in lines if cells[0] == start]


def share(fraction, cols=4096, op="softmax", kernel="online", backend="raw", **fields):
    """A record of a row of 64 MiB."""
    return row(
        op=op, kernel=kernel, backend=backend, dims={"rows": (32 << 20) // cols, "cols": cols},
        bandwidth={"of": "copy", "moved_bytes": 128 << 20, "fraction": fraction},
        resources={"registers": 77, "spill_bytes": 8, "shared_bytes": 64, "blocks_per_sm": 3,
                   "threads_per_block": 256, "occupancy_limited_by": ["registers"]},
    ) | fields  # fmt: skip


def shape(fraction, cols, blocks, cluster=1, **fields):
    kept = {"holds": "kept", "threads": 512, "rows": 1, "packs": 4, "shared": 0,
            "blocks": blocks, "cluster": cluster}  # fmt: skip
    return {
        "schema": 1, "kind": "row_shape", "op": "softmax online", "format": "bf16", "cols": cols,
        "array_bytes": 64 << 20, "shape": kept, "time_ms": 0.04, "gb_per_s": 3700.0,
        "of": "copy", "fraction": fraction, "registers": 64,
        "spill_bytes": 4, "environment": AROUND | {"capability": "9.0"},
    } | fields  # fmt: skip


def attended(tflops, seq=4096, causal=0, fmt="bf16", kernel="mma", head_dim=128, **fields):
    dims = {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": seq, "seq_k": seq,
            "head_dim": head_dim, "causal": causal, "window": 0, "bias_planes": 0,
            "mask_planes": 0}  # fmt: skip
    return row(
        op="attention", kernel=kernel, fmt=fmt, output=fmt, dims=dims, tflops=tflops,
        roofline={"compute": {"fraction": 0.612, "binds": "mma.sync bf16"}, "binds": "copy"},
    ) | fields  # fmt: skip


def limit(kind, tflops, left_out=None, causal=0, verdict="PASS", **tile):
    usual = {"warps": 4, "row_tiles": 2, "keys": 64, "stages": 2, "group": 16, "blocks": 2}
    return {
        "schema": 1, "kind": kind, "left_out": left_out, "tile": usual | tile,
        "dims": {"batch": 4, "seq_q": 4096, "causal": causal}, "tflops": tflops,
        "time_ms": {"median": 1000 / tflops}, "verdict": verdict, "environment": AROUND,
        "resources": {"registers": 255, "spill_bytes": 0, "shared_bytes": 104448,
                      "threads_per_block": 128, "blocks_per_sm": 2,
                      "occupancy_limited_by": ["registers"]},
    }  # fmt: skip
