"""Softmax, a warp a row: what the lessons are without their mistake."""

from __future__ import annotations

from gpulab.kernels.row_kernel import SAME, variants
from gpulab.kernels.row_lesson import declare_twin
from gpulab.kernels.softmax.row import params

declare_twin("softmax", "plain", "two passes, a warp a row", variants(SAME), params)
declare_twin("softmax", "plain_online", "one pass, a warp a row", variants(SAME), params)
