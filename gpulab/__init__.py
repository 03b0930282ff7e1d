"""gpulab: a numerics lab for GPU kernels, with or without a card."""

__version__ = "0.1.0"
