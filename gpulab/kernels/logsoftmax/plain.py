"""Log-softmax, a warp a row: what the lesson is without its mistake."""

from __future__ import annotations

from gpulab.kernels.logsoftmax.row import params
from gpulab.kernels.row_kernel import SAME, variants
from gpulab.kernels.row_lesson import declare_twin

declare_twin("logsoftmax", "plain", "two passes, a warp a row", variants(SAME), params)
