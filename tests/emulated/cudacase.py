"""CUDA C++ text run on the machine: compile, allocate, launch, read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.machine import Machine
from gpulab.runtime import nvrtc, toolkit

Array = NDArray[Any]
Capability = tuple[int, int]


@lru_cache(maxsize=256)
def ptx(source: str, capability: Capability, entry: str = "kernel", name: str = "case.cu") -> str:
    """PTX of a source text; line 1 of the text is line 1 of the file."""
    kit = toolkit.default()
    if "cooperative_groups" in source:  # that header includes others from folders of their own
        more = ("cccl", "cooperative_groups/details")
        kit = replace(kit, headers=(*kit.headers, *(f / m for f in kit.headers for m in more)))
    if "<mma.h>" in source:  # which includes files of crt/ by their bare names
        kit = replace(kit, headers=(*kit.headers, *(f / "crt" for f in kit.headers)))
    return nvrtc.compile_text(source, name, entry, capability, cubin=False, kit=kit).ptx


@dataclass
class Result:
    """Arrays after the launch, in the order of the arguments, and what was printed."""

    arrays: list[Array]
    printed: str = ""
    counters: dict[str, Any] | None = None
    machine: Machine = field(default_factory=Machine)


def run(
    source: str,
    arguments: Sequence[Array | int | float | np.generic],
    *,
    grid: Sequence[int] = (1,),
    block: Sequence[int] = (32,),
    shared: int = 0,
    capability: Capability = (8, 0),
    unwritten: Sequence[int] = (),
    text: str | None = None,
    **machine_options: Any,
) -> Result:
    """Run the ``extern "C"`` function ``kernel``.

    Args:
        source: CUDA C++.
        arguments: arrays (device buffers, initialised), NumPy scalars by value; int = int32,
            float = float32.
        grid, block, shared: launch shape.
        capability: compile for and emulate it.
        unwritten: argument numbers of buffers that hold a poison, not data.
        text: PTX to use instead of compiling.
        machine_options: of ``Machine``.
    """
    machine = Machine(capability, **machine_options)
    program = machine.load(text or ptx(source, capability))
    params, buffers = [], []
    for i, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            address = machine.alloc(value.nbytes, f"argument {i}")
            if i in unwritten:
                machine.fill(address, value.nbytes, 0xA5)
            else:
                machine.write(address, np.ascontiguousarray(value))
            buffers.append((address, value))
            params.append(np.uint64(address).tobytes())
        else:
            kind = np.int32 if isinstance(value, int) else np.float32
            scalar = value if isinstance(value, np.generic) else kind(value)
            params.append(scalar.tobytes())
    report = machine.launch(program, "kernel", grid, block, params, shared)
    arrays = [machine.read(a, v.nbytes).view(v.dtype).reshape(v.shape) for a, v in buffers]
    return Result(arrays, report.printed, report.counters, machine)
