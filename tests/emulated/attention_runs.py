"""Runs attention kernels on the emulated device, for the tests."""

from functools import cache

import numpy as np

from gpulab import registry
from gpulab.formats import decode, encode
from gpulab.lab.runner import KernelRunner
from gpulab.ops.attention import ATTENTION
from gpulab.runtime.emulated import EmulatedDevice

CASES = list(registry.cases("attention"))
HONEST = [c for c in CASES if not c.variant.lesson]
LESSONS = [c for c in CASES if c.variant.lesson]


def dims(**changes):
    found = {
        "batch": 1,
        "heads": 2,
        "kv_heads": 1,
        "seq_q": 40,
        "seq_k": 77,
        "head_dim": 64,
        "causal": 0,
        "window": 0,
        "bias_planes": 0,
        "mask_planes": 0,
    }
    return found | changes


def case(name, fmt, backend="raw", contract=""):
    return next(
        c for c in CASES
        if (c.spec.name, c.variant.format, c.spec.backend) == (name, fmt, backend)
        and c.variant.contract == contract
    )  # fmt: skip


@cache
def device(capability):
    return EmulatedDevice(capability)


def judge(one, d, capability=(8, 9), **options):
    run = KernelRunner(one, device(capability), d)
    return ATTENTION.judge(one.variant, d, run, capability=capability, **options)


def run(one, q, k, v, *, capability=(8, 9), bias=None, mask=None, causal=0, window=0):
    """Values in (batch, heads, seq, head_dim) -> out as values and lse.

    Args:
        bias: (planes, seq_q, seq_k).
        mask: (planes, seq_q, seq_k), True where a key may be seen.
    """
    fmt = one.variant.format
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    d = dims(
        batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], seq_q=q.shape[2],
        seq_k=k.shape[2], head_dim=q.shape[3], causal=causal, window=window,
        bias_planes=0 if bias is None else len(bias),
        mask_planes=0 if mask is None else len(mask),
    )  # fmt: skip
    plane = (d["seq_q"], d["seq_k"])
    arrays = {n: encode(fmt, x) for n, x in zip("qkv", (q, k, v), strict=True)}
    arrays["bias"] = np.zeros((0, *plane)) if bias is None else np.asarray(bias)
    arrays["bias"] = arrays["bias"].astype(np.float32)
    arrays["mask"] = np.zeros((0, *plane), np.int8) if mask is None else np.asarray(mask, np.int8)
    for n in "qkv":
        arrays[f"{n}_scale"] = np.ones(arrays[n].shape[:-1], np.float32)
    got = KernelRunner(one, device(capability), d)(arrays).outputs
    return decode(one.variant.output, got["out"]), got["lse"]
