"""Softmax as the checker knows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.check.subjects.logsum import SHARED, with_parts
from gpulab.check.subjects.rows import Mistake, Rows
from gpulab.ops.softmax import SOFTMAX

KNOWN = (
    Mistake("not-normalised", "the exponentials are not divided by their sum",
            "y = expf(x - max) / sum", with_parts(lambda p: replace(p, sum=np.ones_like(p.sum)))),
    *SHARED,
    Mistake("other-result", "this is the logarithm of the softmax", "store the probability itself",
            with_parts(lambda p: replace(p, e=p.d - p.log, sum=np.ones_like(p.sum)))),
)  # fmt: skip

SUBJECT = Rows(SOFTMAX, KNOWN, "factor", "y[row * cols + column] = ...")
