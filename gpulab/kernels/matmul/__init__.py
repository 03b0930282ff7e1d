"""Matmul kernels, from a shared-memory tile to tensor cores, and the library beside them."""
