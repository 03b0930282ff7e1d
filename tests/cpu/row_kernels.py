"""Row kernels in plain NumPy for the tests of the gates: honest ones, and wrong ones.

They are written from the definition of what they do, in float32 and with types of other libraries,
without the lab's simulations, so that a gate is never tested against its own yardstick.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from gpulab.ops.base import RunResult

F32 = np.float32
TYPES = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
IGNORED = -100
RMS_EPS, LAYER_EPS = F32(1e-6), F32(1e-5)


@dataclass(frozen=True)
class Row:
    """A row of a ladder, without the registry."""

    format: str
    output: str
    contract: str = ""
    accumulator: str = "fp32"
    lesson: bool = False
    caught_on: tuple[str, ...] = ()

    def instruction(self, capability):
        return None


def numbers(fmt, stored):
    """Stored codes as float32."""
    return stored.view(TYPES[fmt]).astype(F32)


def store(fmt, values):
    """float32 -> codes, as the lab stores them."""
    kind = np.dtype(TYPES[fmt])
    codes = values.astype(F32).astype(kind)
    return codes if kind in (np.float32, np.float16) else codes.view(f"u{kind.itemsize}")


def through(fmt, values):
    return values.astype(F32).astype(TYPES[fmt]).astype(F32)


def plain_sum(values):
    return values.astype(F32).sum(axis=1, keepdims=True, dtype=F32)


def narrow_sum(fmt):
    """A running sum in a 16-bit format."""

    def total(values):
        terms = values.astype(F32).astype(TYPES[fmt])
        return np.add.accumulate(terms, axis=1)[:, -1:].astype(F32)

    return total


def rms(row, x, weight, total=plain_sum, eps=RMS_EPS, cast=True):
    scale = np.where(np.abs(x).max(axis=1, keepdims=True) > 1e18, F32(2.0**-80), F32(1))
    small = x * scale
    mean = total(small * small) / F32(x.shape[1])
    normal = small * (F32(1) / np.sqrt(mean + eps * scale * scale))
    return (through(row.output, normal) if cast else normal) * weight


def rmsnorm(row, x, weight, **how):
    return {"y": store(row.output, rms(row, x, weight, **how))}


def residual_rmsnorm(row, x, residual, weight, early=None, **how):
    """Early: whether the sum is rounded first; None: as the contract says."""
    total = x + residual
    if (row.contract == "rounded-sum") if early is None else early:
        used = through(row.format, total)
    else:
        used = total
    return {"y": store(row.output, rms(row, used, weight, **how)),
            "residual_out": store(row.format, total)}  # fmt: skip


def layernorm(row, x, weight, bias, variance="two-pass", eps=LAYER_EPS, total=plain_sum):
    n = F32(x.shape[1])
    scale = np.where(np.abs(x).max(axis=1, keepdims=True) > 1e17, F32(2.0**-80), F32(1))
    x = x * scale
    mean = total(x) / n
    if variance == "naive":
        var = total(x * x) / n - mean * mean
    else:
        shift = mean
        mean = total(x - shift) / n
        var = np.maximum(total((x - shift) ** 2) / n - mean * mean, F32(0))
        x = x - shift
    spread = var + eps * scale * scale
    rstd = np.where(spread == 0, F32(0), F32(1) / np.sqrt(spread))
    return {"y": store(row.output, (x - mean) * rstd * weight + bias)}


def parts(x, total=plain_sum, exp=np.exp, largest=None):
    largest = np.max(x, axis=1, keepdims=True) if largest is None else largest
    base = np.where(np.isneginf(largest), F32(0), largest)
    e = exp(x - base).astype(F32)
    return largest, e, total(e)


def softmax(row, x, **how):
    _, e, total = parts(x, **how)
    y = e / total
    y[np.isneginf(np.max(x, axis=1))] = np.nan
    return {"y": store(row.output, y)}


def logsoftmax(row, x, **how):
    largest, _, total = parts(x, **how)
    return {"y": store(row.output, (x - largest) - np.log(total))}


def crossentropy(row, x, labels, shift=0, ignore=True, **how):
    largest, _, total = parts(x, **how)
    log = np.log(total)[:, 0]
    cols = x.shape[1]
    valid = (labels >= 0) & (labels < cols)
    at = np.where(valid, (labels + shift) % cols, 0)
    target = np.where(valid, np.take_along_axis(x, at[:, None], axis=1)[:, 0], F32(np.nan))
    loss = (largest[:, 0] - target) + log
    if ignore:
        loss[labels == IGNORED] = 0
    return {"loss": loss.astype(F32), "lse": (largest[:, 0] + log).astype(F32)}


KERNELS = {
    "rmsnorm": rmsnorm,
    "layernorm": layernorm,
    "softmax": softmax,
    "logsoftmax": logsoftmax,
    "crossentropy": crossentropy,
}


def runner(row, kernel, spoil=None, **how):
    """The kernel as the gates call it; ``spoil`` may change outputs before they are returned."""

    def run(inputs, *, poison):
        given = dict(inputs)
        values = []
        for name, stored in given.items():
            if name == "labels":
                values.append(stored.astype(np.int64))
            else:
                fmt = row.format if name in ("x", "residual") else row.output
                values.append(numbers(fmt, stored))
        with np.errstate(all="ignore"):
            outputs = kernel(row, *values, **how)
        if spoil is not None:
            spoil(outputs, poison)
        return RunResult(outputs, True)

    return run


ROWS = {
    "rmsnorm": [Row("fp32", "fp32"), Row("fp16", "fp16"), Row("bf16", "bf16"),
                Row("e4m3", "bf16"), Row("e5m2", "bf16")],
    "residual": [Row("fp32", "fp32", "fp32-sum"), Row("fp16", "fp16", "fp32-sum"),
                 Row("bf16", "bf16", "fp32-sum"), Row("fp16", "fp16", "rounded-sum"),
                 Row("bf16", "bf16", "rounded-sum")],
    "layernorm": [Row("fp32", "fp32", "two-pass"), Row("fp16", "fp16", "two-pass"),
                  Row("bf16", "bf16", "two-pass"), Row("e4m3", "bf16", "two-pass")],
    "softmax": [Row("fp32", "fp32"), Row("fp16", "fp16"), Row("bf16", "bf16")],
    "logsoftmax": [Row("fp32", "fp32"), Row("fp16", "fp16"), Row("bf16", "bf16")],
    "crossentropy": [Row("fp32", "fp32"), Row("fp16", "fp32"), Row("bf16", "fp32")],
}  # fmt: skip


def subjects():
    """(operation, row, honest kernel) of every kind."""
    for name, rows in ROWS.items():
        for row in rows:
            if name == "residual":
                yield "rmsnorm", row, residual_rmsnorm
            else:
                yield name, row, KERNELS[name]
