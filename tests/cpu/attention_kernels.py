"""Attention in plain NumPy for the tests of its gates: honest kernels and wrong ones.

Written from the definition, without the lab's reference and simulations, so that a gate is never
tested against its own yardstick.
"""

import math

import ml_dtypes
import numpy as np

from gpulab.formats import encode
from gpulab.numerics.cache import Cache
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_data import Data, Inputs
from gpulab.ops.base import RunResult

TYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}


class Row:
    """A row of the ladder, without the registry."""

    def __init__(self, format="fp32", tensor_core=None, lesson=False, output=None, contract=""):
        self.format, self.output, self.contract = format, output or format, contract
        self.accumulator, self.lesson, self.tensor_core = "fp32", lesson, tensor_core
        self.caught_on = ()

    def instruction(self, capability):
        return self.tensor_core


def dims(**changes):
    found = {
        "batch": 1,
        "heads": 2,
        "kv_heads": 1,
        "seq_q": 21,
        "seq_k": 45,
        "head_dim": 24,
        "causal": 0,
        "window": 0,
        "bias_planes": 0,
        "mask_planes": 0,
    }
    return found | changes


def sees(d, entry, i, j, mask):
    position = i + d["seq_k"] - d["seq_q"]
    if d["causal"] and j > position:
        return False
    if d["window"] and not position - d["window"] < j < position + d["window"]:
        return False
    return not d["mask_planes"] or bool(mask[entry % d["mask_planes"], i, j])


def exactly(row, d):
    """The lab's exact answers, rounded once: what certificates are tried with; 0 where none is."""
    data = Data(AttentionContract.of(row, (8, 9)), d, 0, Cache())

    def run(inputs, *, poison):
        shape = (d["heads"], d["seq_q"])
        out, lse = np.zeros((*shape, d["head_dim"])), np.zeros(shape)
        for piece in data.pieces(Inputs(1.0, dict(inputs), None)):
            out[piece.head][piece.queries] = piece.answer.out
            lse[piece.head][piece.queries] = piece.answer.lse
        return RunResult(
            {"out": encode(row.output, out)[None], "lse": lse.astype(np.float32)[None]}, True
        )

    return run


class Kernel:
    """A right kernel, query by query in float32; subclasses go wrong in one place."""

    p_type = np.float32
    reverse = False

    def __init__(self, row, d):
        self.row, self.d = row, d

    def __call__(self, inputs, *, poison):
        d, kind = self.d, TYPES[self.row.format]
        q, k, v = (inputs[n].view(kind).astype(np.float32) for n in "qkv")
        out = np.empty(q.shape, np.float32)
        lse = np.empty(q.shape[:3], np.float32)
        with np.errstate(all="ignore"):
            for entry in range(d["batch"]):
                for head in range(d["heads"]):
                    kv = self.kv_head(head)
                    for i in range(d["seq_q"]):
                        seen = [self.sees(entry, i, j, inputs["mask"]) for j in range(d["seq_k"])]
                        bias = 0.0
                        if d["bias_planes"]:
                            bias = inputs["bias"][head % d["bias_planes"], i]
                        x = self.scores(q[entry, head, i], k[entry, kv]) + bias
                        x = np.where(seen, x, self.hidden(x)).astype(np.float32)
                        out[entry, head, i], lse[entry, head, i] = self.row_of(x, v[entry, kv])
        return RunResult(self.finish(out.astype(kind).view(inputs["q"].dtype), lse, poison), True)

    def kv_head(self, head):
        return head // (self.d["heads"] // self.d["kv_heads"])

    def sees(self, entry, i, j, mask):
        return sees(self.d, entry, i, j, mask)

    def scores(self, q, k):
        return ((q / np.float32(math.sqrt(len(q)))) * k).sum(axis=1, dtype=np.float32)

    def hidden(self, x):
        return np.float32(-np.inf)

    def row_of(self, x, v):
        top = x.max()
        if top == -np.inf:
            return np.zeros(v.shape[1], np.float32), np.float32(-np.inf)
        p = np.exp(x - top)
        total = np.float32(0)
        order = range(len(p))[::-1] if self.reverse else range(len(p))
        summed = np.zeros(v.shape[1], np.float32)
        for j in order:
            total = np.float32(total + p[j])
            rounded = p[j].astype(self.p_type).astype(np.float32)
            summed = summed + rounded * v[j]
        return summed / total, top + np.log(total)

    def finish(self, out, lse, poison):
        return {"out": out, "lse": lse}


class Backwards(Kernel):
    reverse = True


class Online(Kernel):
    """Eight keys at a time, rescaled."""

    def row_of(self, x, v):
        top, total, summed = np.float32(-np.inf), np.float32(0), np.zeros(v.shape[1], np.float32)
        for first in range(0, len(x), 8):
            part = x[first : first + 8]
            new = max(top, part.max())
            base = np.float32(0) if new == -np.inf else new
            factor = self.factor(np.exp(top - base))
            p = np.exp(part - base)
            total = total * factor + p.sum(dtype=np.float32)
            summed = summed * factor + p @ v[first : first + 8]
            top = new
        share = np.float32(0) if total == 0 else np.float32(1) / total
        return summed * share, top + np.log(total)

    def factor(self, factor):
        return factor


# Wrong ones.


class NoRescale(Online):
    def factor(self, factor):
        return factor * 0 + np.float32(1)


class MaskZero(Kernel):
    def hidden(self, x):
        return np.float32(0)


class OffByOne(Kernel):
    def sees(self, entry, i, j, mask):
        return super().sees(entry, i, max(j - 1, 0), mask)


class TopLeft(Kernel):
    """Causality aligned at the first query and the first key."""

    def sees(self, entry, i, j, mask):
        return j <= i


class Unscaled(Kernel):
    def scores(self, q, k):
        return (q * k).sum(axis=1, dtype=np.float32)


class HalfScores(Kernel):
    def scores(self, q, k):
        scale = np.float32(math.sqrt(len(q)))
        return (q * k).sum(axis=1).astype(np.float16).astype(np.float32) / scale


class HalfProbabilities(Kernel):
    p_type = np.float16


class RoughProbabilities(Kernel):
    p_type = ml_dtypes.bfloat16


class NoMax(Kernel):
    def row_of(self, x, v):
        p = np.exp(x)
        return (p @ v) / p.sum(), np.log(p.sum())


class WrongHead(Kernel):
    def kv_head(self, head):
        return head % self.d["kv_heads"]


class EmptyRowsNaN(Kernel):
    def row_of(self, x, v):
        p = np.exp(x - x.max())
        return (p @ v) / p.sum(), x.max() + np.log(p.sum())


class WrongLse(Kernel):
    def finish(self, out, lse, poison):
        return {"out": out, "lse": lse * np.float32(1 / math.log(2))}


class SkipsLastQuery(Kernel):
    def finish(self, out, lse, poison):
        raw = out[:, :, -1:].copy().view(np.uint8)
        raw[...] = poison
        out[:, :, -1:] = raw.view(out.dtype)
        return {"out": out, "lse": lse}


class NoLse(Kernel):
    def finish(self, out, lse, poison):
        return {"out": out}
