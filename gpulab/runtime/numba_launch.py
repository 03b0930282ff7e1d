"""Numba's own launch on a card, of the cubin that the lab assembled.

Numba would compile a kernel anew for the card, with contraction on and at link time. So that the
card runs the very PTX that the emulated device runs, its kernel object is given our cubin instead;
argument handling and launch are Numba's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpulab.registry import LaunchPlan
from gpulab.runtime.numba_ptx import NumbaPtx


def rebuilt(compiled: NumbaPtx) -> Any:
    """Numba's kernel object for what was compiled, made as Numba itself makes one of its cache:
    nothing is compiled again, which would take seconds a kernel (not public API)."""
    codegen = importlib.import_module("numba.cuda.codegen")
    dispatcher = importlib.import_module("numba.cuda.dispatcher")
    target = importlib.import_module("numba.cuda.descriptor").cuda_target.target_context
    return dispatcher._Kernel._rebuild(
        cooperative=False,
        name=compiled.entry,
        signature=importlib.import_module("numba").types.void(*compiled.types),
        codelibrary=codegen.CUDACodeLibrary(target.codegen(), compiled.entry, compiled.entry),
        debug=False,
        lineinfo=False,
        call_helper=None,
        extensions=[],
    )


class NumbaKernel:
    """A Numba kernel for one signature, ready to launch.

    Args:
        compiled: the kernel's PTX, function and types.
        cubin: the file of its cubin for this card.
        stream: address of the stream to launch on.
    """

    def __init__(self, compiled: NumbaPtx, cubin: Path, stream: int) -> None:
        self.cubin = cubin
        self._cuda = importlib.import_module("numba.cuda")
        numba_driver = importlib.import_module("numba.cuda.cudadrv.driver")
        self._kernel = rebuilt(compiled)
        library = self._kernel._codelibrary
        library._cubin_cache[library._ensure_cc(None)] = numba_driver.ObjectCode.from_cubin(
            cubin.read_bytes(), name=compiled.entry
        )
        self._kernel.bind()
        self._stream = numba_driver._to_core_stream(self._cuda.external_stream(stream))

    def bind(self, plan: LaunchPlan, args: Sequence[Any]) -> Callable[[], None]:
        """What launches these arguments: CuPy arrays, taken through
        ``__cuda_array_interface__``, and numbers."""
        values = [
            self._cuda.as_cuda_array(a, sync=False) if hasattr(a, "__cuda_array_interface__") else a
            for a in args
        ]
        launch, stream = self._kernel.launch, self._stream
        return lambda: launch(values, plan.grid, plan.block, stream, plan.shared_bytes)
