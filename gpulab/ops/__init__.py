"""The operations of the lab: one module each, whose capitalised name is the operation."""

from __future__ import annotations

import importlib

from gpulab.ops.base import Op


def get(name: str) -> Op:
    """The operation of a name that the registry knows (``matmul``)."""
    op: Op = getattr(importlib.import_module(f"gpulab.ops.{name}"), name.upper())
    return op
