"""Kernels of one operation; importing a module registers what it declares."""
