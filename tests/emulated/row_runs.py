"""Runs row kernels on the emulated device, for the tests."""

from functools import cache

import numpy as np

from gpulab import ops, registry
from gpulab.formats import decode, encode
from gpulab.lab.runner import KernelRunner
from gpulab.runtime.emulated import EmulatedDevice

OPS = ("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy")
CASES = [c for op in OPS for c in registry.cases(op)]
HONEST = [c for c in CASES if not c.variant.lesson]
LESSONS = [c for c in CASES if c.variant.lesson]
NAMES = list(dict.fromkeys((c.spec.op, c.spec.backend, c.spec.name) for c in HONEST))
"""Kernels; each has a case a format."""


@cache
def device(capability=(8, 9), sanitize=False):
    return EmulatedDevice(capability, sanitize=sanitize)


def case(op, name, fmt, backend="raw"):
    return next(registry.cases(op, kernel=name, format=fmt, backend=backend))


def formats_of(key):
    """The cases of one kernel."""
    return [c for c in HONEST if (c.spec.op, c.spec.backend, c.spec.name) == key]


def both(op, name, fmt):
    """The raw kernel and, where there is one, its Numba twin."""
    return [
        c for c in HONEST
        if (c.spec.op, c.spec.name, c.variant.format) == (op, name, fmt)
    ]  # fmt: skip


def label(one):
    return f"{one.spec.op}-{one.label}".replace(" ", "")


def judge(one, dims, capability=(8, 9), **options):
    """The verdict on a case, run on the emulated device."""
    runner = KernelRunner(one, device(capability), dims)
    return ops.get(one.spec.op).judge(
        one.variant, dims, runner, capability=capability, **options
    )  # fmt: skip


def run(one, capability=(8, 9), sanitize=False, **arrays):
    """Outputs as float64 of one launch on given values (labels as integers)."""
    params = one.spec.params(one.variant)
    rows, cols = np.shape(arrays["x"])
    stored = {
        p.name: np.asarray(arrays[p.name], np.int32)
        if p.format == "int32"
        else encode(p.format, np.asarray(arrays[p.name], np.float64))
        for p in params
        if p.role == "in"
    }
    where = device(capability, sanitize)
    result = KernelRunner(one, where, {"rows": rows, "cols": cols})(stored)
    assert result.inputs_unchanged
    formats = {p.name: p.format for p in params}
    return {name: decode(formats[name], array) for name, array in result.outputs.items()}
