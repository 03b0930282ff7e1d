"""RMSNorm, a warp a row: what the lessons are without their mistake."""

from __future__ import annotations

from gpulab.kernels.rmsnorm.row import KEPT, params, residual_params
from gpulab.kernels.row_kernel import SAME, variants
from gpulab.kernels.row_lesson import declare_twin

declare_twin("rmsnorm", "plain", "float32 sums, a warp a row", variants(SAME), params)
declare_twin(
    "rmsnorm",
    "plain_residual",
    "float32 sums, kept, a warp a row",
    KEPT,
    residual_params,
)
