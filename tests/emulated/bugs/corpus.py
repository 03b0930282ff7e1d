"""The planted bugs: what the manifest and the marks in the sources say, and how to launch them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.machine import Machine
from gpulab.runtime import nvrtc

HERE = Path(__file__).resolve().parent
DTYPES = {"f32": np.dtype("f4"), "i32": np.dtype("i4"), "i64": np.dtype("i8")}
_MARK = re.compile(r"//\s*BUG:\s*([a-z_ ]+?)\s*$")
_ENTRY = re.compile(r'extern "C" __global__ void (\w+)')


@dataclass(frozen=True)
class Case:
    """One kernel of the corpus: a planted bug, or (``twin``) the correct kernel beside it.

    Args:
        name: of the manifest's table.
        twin: whether this is the correct one.
        fault: kind the emulated device must report; empty for a correct kernel.
        grid, block: launch shape.
        args: as in the manifest.
        capability: lowest that compiles it.
        tool: the compute-sanitizer tool that can see the bug, "" if none.
        control: a bug that the tool sees although it may not see this one.
        reason: why none can, or what is different from the control.
        endless: why the tool may never end, where threads wait for ever.
    """

    name: str
    twin: bool
    fault: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[dict[str, Any], ...]
    capability: tuple[int, int]
    tool: str
    control: str
    reason: str
    endless: str = ""

    @property
    def source(self) -> Path:
        return HERE / f"{self.name}{'_ok' if self.twin else ''}.cu"

    @property
    def label(self) -> str:
        return self.source.stem

    @property
    def entry(self) -> str:
        found = _ENTRY.search(self.source.read_text())
        assert found is not None, self.source
        return found[1]

    def lines(self, kind: str | None = None) -> list[int]:
        """Lines that the source marks (with this kind of fault)."""
        numbered = enumerate(self.source.read_text().splitlines(), start=1)
        marks = ((i, _MARK.search(line)) for i, line in numbered)
        return [i for i, m in marks if m and (kind is None or kind in m[1].split())]


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """Every kernel, each bug followed by its twin."""
    found = []
    for name, row in tomllib.loads((HERE / "manifest.toml").read_text()).items():
        for twin in (False, True) if row["fault"] else (True,):
            found.append(
                Case(
                    name=name,
                    twin=twin,
                    fault="" if twin else row["fault"],
                    grid=tuple(row["grid"]),
                    block=tuple(row["block"]),
                    args=tuple(row["twin_args"] if twin and "twin_args" in row else row["args"]),
                    capability=tuple(row.get("capability", (7, 5))),
                    tool=row["tool"],
                    control="" if twin else row.get("control", ""),
                    reason=row.get("reason", ""),
                    endless="" if twin else row.get("endless", ""),
                )
            )
    return tuple(found)


def get(label: str) -> Case:
    """The kernel whose source is ``LABEL.cu``."""
    return next(case for case in cases() if case.label == label)


def values(arg: dict[str, Any]) -> NDArray[Any]:
    """The contents of an input array."""
    kind = arg.get("in") or arg["inout"]
    index = np.arange(arg["count"])
    made = {
        "ramp": index,
        "wave": np.sin(index + 0.5),
        "bins": index * 7 % 16,
        "flags": index % 2,
        "zeros": index * 0,
    }[arg["values"]]
    return made.astype(DTYPES[kind])


def emulate(
    case: Case,
    *,
    sanitize: bool = True,
    budget: int | None = None,
    capability: tuple[int, int] = (8, 9),
) -> list[NDArray[Any]]:
    """Run a kernel on the emulated device; returns its output arrays.

    Raises:
        FaultError: what the device found.
        KernelTimeoutError: it ran past its budget.
    """
    compiled = nvrtc.compile_ptx(case.source, case.entry, capability)
    machine = Machine(capability, sanitize=sanitize, budget=budget)
    params, outputs = [], []
    for position, arg in enumerate(case.args):
        scalar = next((kind for kind in DTYPES if kind in arg), None)
        if scalar is not None:
            params.append(np.array(arg[scalar], DTYPES[scalar]).tobytes())
            continue
        kind = arg.get("in") or arg.get("inout") or arg["out"]
        nbytes = arg["count"] * DTYPES[kind].itemsize
        address = machine.alloc(nbytes, f"argument {position}")
        if "out" not in arg:
            machine.write(address, values(arg))
        if "in" not in arg:
            outputs.append((address, nbytes, DTYPES[kind]))
        params.append(np.uint64(address).tobytes())
    program = machine.load(compiled.ptx)
    machine.launch(program, compiled.lowered, case.grid, case.block, params)
    return [machine.read(address, nbytes).view(dtype) for address, nbytes, dtype in outputs]
