"""Softmax as the checker knows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.check.subjects.logsum import SHARED, with_parts
from gpulab.check.subjects.rows import Mistake, Rows
from gpulab.formats import get
from gpulab.numerics.rounding import through
from gpulab.ops.rows_logsum import LogSum
from gpulab.ops.rows_mutants import Compute
from gpulab.ops.softmax import SOFTMAX

HALF = get("fp16")


def _in_half(numerators: bool, sums: bool, inverses: bool) -> Compute:
    """Results of exponentials, sums, or inverses of sums that are rounded to half."""

    def change(parts: LogSum) -> LogSum:
        e = through(HALF, parts.e) if numerators else parts.e
        total = through(HALF, parts.sum) if sums else parts.sum
        return replace(parts, e=e, sum=1.0 / through(HALF, 1.0 / total) if inverses else total)

    return with_parts(change)


_PARTS = (
    ("the exponentials are", (True, False, False)),
    ("the sum, once it is complete, is", (False, True, False)),
    ("exponentials and complete sum are", (True, True, False)),
    ("one over the sum is", (False, False, True)),
    ("exponentials and one over their sum are", (True, False, True)),
)
KNOWN = (
    Mistake("not-normalised", "the exponentials are not divided by their sum",
            "y = expf(x - max) / sum", with_parts(lambda p: replace(p, sum=np.ones_like(p.sum)))),
    *SHARED,
    *(Mistake("narrow-arithmetic", f"{what} rounded to half before the result is formed",
              "form the result in float and round it once", _in_half(*how), bits=True)
      for what, how in _PARTS),
    Mistake("other-result", "this is the logarithm of the softmax", "store the probability itself",
            with_parts(lambda p: replace(p, e=p.d - p.log, sum=np.ones_like(p.sum)))),
)  # fmt: skip

SUBJECT = Rows(SOFTMAX, KNOWN, "factor", "y[row * cols + column] = ...")
