"""Cross entropy, a warp a row: what the lesson is without its mistake."""

from __future__ import annotations

from gpulab.kernels.crossentropy.row import FORMATS, params
from gpulab.kernels.row_kernel import variants
from gpulab.kernels.row_lesson import declare_twin

declare_twin("crossentropy", "plain", "two passes, a warp a row", variants(FORMATS), params)
