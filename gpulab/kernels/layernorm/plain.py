"""LayerNorm, a warp a row: what the lesson is without its mistake."""

from __future__ import annotations

from gpulab.kernels.layernorm.row import params
from gpulab.kernels.row_kernel import SAME, variants
from gpulab.kernels.row_lesson import declare_twin

declare_twin("layernorm", "plain", "two passes, a warp a row", variants(SAME, "two-pass"), params)
