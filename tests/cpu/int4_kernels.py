"""Products with int4 weights in plain NumPy for the tests: honest kernels and wrong ones.

Written from the layout of the bytes, without the lab's packing, reference and simulations.
"""

import numpy as np

from gpulab.ops.base import RunResult


def sign_extended(nibble):
    wide = nibble.astype(np.int64)
    return np.where(wide > 7, wide - 16, wide)


class Kernel:
    """Weight by weight in float32, in ascending order; subclasses differ in one place."""

    def __init__(self, dims):
        self.dims = dims

    def __call__(self, inputs, *, poison):
        with np.errstate(all="ignore"):
            found = self.product(inputs["a"].astype(np.float32), inputs["w"], inputs["scales"])
        return RunResult({"c": self.finish(found.astype(np.float32), poison)}, True)

    def finish(self, c, poison):
        return c

    def code(self, w, t):
        """Row t of the codes (n,)."""
        return sign_extended(w[t // 2] & 15 if t % 2 == 0 else w[t // 2] >> 4).astype(np.float32)

    def scale(self, scales, t):
        return scales[t // self.dims["group"]].astype(np.float32)

    def order(self, k):
        return range(k)

    def product(self, a, w, scales):
        total = np.zeros((len(a), w.shape[1]), np.float32)
        for t in self.order(a.shape[1]):
            total = total + a[:, t, None] * (self.code(w, t) * self.scale(scales, t))
        return total


class Backwards(Kernel):
    def order(self, k):
        return range(k)[::-1]


class GroupSums(Kernel):
    """Group by group, each sum scaled once."""

    def rounded(self, part):
        return part

    def product(self, a, w, scales):
        k, group = a.shape[1], self.dims["group"]
        total = np.zeros((len(a), w.shape[1]), np.float32)
        for first in range(0, k, group):
            part = np.zeros_like(total)
            for t in range(first, min(k, first + group)):
                part = part + a[:, t, None] * self.code(w, t)
            total = total + self.rounded(part) * self.scale(scales, first)
        return total


# Wrong ones.


class Swapped(Kernel):
    def code(self, w, t):
        return sign_extended(w[t // 2] >> 4 if t % 2 == 0 else w[t // 2] & 15).astype(np.float32)


class Unsigned(Kernel):
    def code(self, w, t):
        return super().code(w, t) % 16


class ZeroPoint(Kernel):
    def code(self, w, t):
        return super().code(w, t) % 16 - 8


class NextGroup(Kernel):
    def scale(self, scales, t):
        return scales[min(t // self.dims["group"] + 1, len(scales) - 1)].astype(np.float32)


class NoScale(Kernel):
    def scale(self, scales, t):
        return np.float32(1)


class HalfWeights(Kernel):
    def product(self, a, w, scales):
        total = np.zeros((len(a), w.shape[1]), np.float32)
        for t in range(a.shape[1]):
            weight = (self.code(w, t) * self.scale(scales, t)).astype(np.float16)
            total = total + a[:, t, None] * weight.astype(np.float32)
        return total


class HalfGroupSums(GroupSums):
    def rounded(self, part):
        return part.astype(np.float16).astype(np.float32)


class HalfSum(Kernel):
    def product(self, a, w, scales):
        total = np.zeros((len(a), w.shape[1]), np.float16)
        for t in range(a.shape[1]):
            total = (total + a[:, t, None] * (self.code(w, t) * self.scale(scales, t))).astype(
                np.float16
            )
        return total


class NoTail(GroupSums):
    """A last group that is not whole is left out."""

    def product(self, a, w, scales):
        whole = a.shape[1] // self.dims["group"] * self.dims["group"]
        return super().product(a[:, :whole], w, scales)


class HidesNaN(Kernel):
    def finish(self, c, poison):
        return np.nan_to_num(c)


class SkipsLastColumn(Kernel):
    def finish(self, c, poison):
        raw = c[:, -1:].copy().view(np.uint8)
        raw[...] = poison
        c[:, -1:] = raw.view(np.float32)
        return c
