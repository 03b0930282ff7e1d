"""Instructions on the card and on the emulated device, compared bit for bit.

A ``Family`` is a kernel that applies many instructions to the same inputs: one load of each
operand, one store of each result. Inputs and results are raw codes. ``compare`` runs it on both
devices and lists, for each instruction, how many results differ and on which inputs.

GPULAB_EQUALITY_REPORT=FILE appends one JSON line a family. GPULAB_EQUALITY_DUMP=FOLDER keeps the
inputs and the card's results of families that differ. GPULAB_EQUALITY_AGAINST=emulated puts a
second emulated device in the card's place: a rehearsal that shows nothing about a card.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.lab.environment import environment
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime.device import Device

Array = NDArray[Any]
SHOWN = 8
"""Differences of an instruction that the report keeps, spread over all of them."""
_C_TYPE = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
_CONSTRAINT = {2: "h", 4: "r", 8: "l"}
BLOCK = 128


@dataclass(frozen=True)
class Ins:
    """One instruction: its name and, where it is more than ``name %0, %1, ...``, its PTX."""

    name: str
    body: str = ""

    def text(self, count: int) -> str:
        if self.body:
            return "{" + self.body + "}"
        return f"{self.name} " + ", ".join(f"%{i}" for i in range(count + 1)) + ";"


@dataclass(frozen=True)
class Family:
    """Instructions of one signature.

    Args:
        name: for people.
        instructions: names, or ``Ins``.
        inputs: an array of codes (uint16, uint32, uint64) for each operand, equal lengths.
        result: dtype of the result's codes.
        place: the address at which the result will be stored is one more operand, the last.
    """

    name: str
    instructions: Sequence[str | Ins]
    inputs: Sequence[Array]
    result: Any
    place: bool = False

    @property
    def listed(self) -> list[Ins]:
        return [Ins(i) if isinstance(i, str) else i for i in self.instructions]

    def source(self) -> str:
        out = np.dtype(self.result).itemsize
        lines = []
        for i, x in enumerate(self.inputs):
            kind = _C_TYPE[x.dtype.itemsize]
            lines.append(f"    {kind} a{i} = ((const {kind}*)x{i})[i];")
        lines.append(f"    {_C_TYPE[out]}* to = ({_C_TYPE[out]}*)y + i;")
        operands = ", ".join(
            f'"{_CONSTRAINT[x.dtype.itemsize]}"(a{i})' for i, x in enumerate(self.inputs)
        )
        operands += ', "l"(to)' if self.place else ""
        for one in self.listed:
            text = one.text(len(self.inputs))
            lines += [
                f"    {{ {_C_TYPE[out]} d;",
                f'      asm volatile("{text}" : "={_CONSTRAINT[out]}"(d) : {operands} : "memory");',
                "      *to = d; to += n; }",
            ]
        arrays = "".join(f"const int* x{i}, " for i in range(len(self.inputs)))
        return "\n".join(
            [
                f'extern "C" __global__ void k({arrays}int* y, int n) {{',
                "    int i = blockIdx.x * blockDim.x + threadIdx.x;",
                "    if (i >= n) return;",
                *lines,
                "}",
            ]
        )


@dataclass(frozen=True)
class Difference:
    """One instruction whose results differ.

    Args:
        instruction: its name.
        count: results that differ.
        shown: (input bits, card bits, emulated bits) of some of them, the first one first.
    """

    instruction: str
    count: int
    shown: list[tuple[list[str], str, str]]

    def __str__(self) -> str:
        inputs, card, emulated = self.shown[0]
        return (
            f"{self.instruction}: {self.count} differ; first at {' '.join(inputs)}: "
            f"card {card}, emulated {emulated}"
        )


@dataclass(frozen=True)
class Devices:
    """The two that are compared, and a folder for sources."""

    card: Device
    emulated: Device
    folder: Path
    records: list[dict[str, Any]] = field(default_factory=list)


def as_words(codes: Array) -> Array:
    """Codes as an int32 array, padded with zeros."""
    raw = np.ascontiguousarray(codes).tobytes()
    return np.frombuffer(raw + bytes(-len(raw) % 4), np.int32)


def execute(
    device: Device,
    folder: Path,
    source: str,
    inputs: Sequence[Array],
    outputs: Sequence[tuple[int, Any]],
    n: int,
    plan: LaunchPlan,
) -> list[Array]:
    """Launch ``k(x0, ..., y0 or y, ..., n)``: arrays as raw words.

    Args:
        device: where.
        folder: for the source.
        source: CUDA C++.
        inputs: codes of any width.
        outputs: (elements, dtype) of each result.
        n: the last argument.
        plan: the launch.

    Returns:
        The results.
    """
    path = folder / "k.cu"
    path.write_text(source)
    params = [Param(f"x{i}", "in", "int32", (f"u{i}",)) for i in range(len(inputs))]
    params += [Param(f"y{i}", "out", "int32", (f"v{i}",)) for i in range(len(outputs))]
    params.append(Param("n", "dim", "int32"))
    function = device.build(RawBuild(str(path), "k"), tuple(params))
    sent = [device.upload(as_words(x), f"x{i}") for i, x in enumerate(inputs)]
    sizes = [-(-count * np.dtype(kind).itemsize // 4) for count, kind in outputs]
    got = [device.empty((s,), np.dtype(np.int32), name=f"y{i}") for i, s in enumerate(sizes)]
    device.launch(function, plan, [*sent, *got, n])
    device.synchronize()
    raw = [device.download(y) for y in got]
    device.free(*sent, *got)
    return [r.view(kind)[:count] for r, (count, kind) in zip(raw, outputs, strict=True)]


def compare(devices: Devices, family: Family) -> list[Difference]:
    """Run a family on both devices; what differs, recorded where a report is asked for."""
    n, listed = len(family.inputs[0]), family.listed
    assert all(len(x) == n for x in family.inputs)
    plan = LaunchPlan((-(-n // BLOCK), 1, 1), (BLOCK, 1, 1))
    wanted = [(n * len(listed), family.result)]
    card, emulated = (
        execute(d, devices.folder, family.source(), family.inputs, wanted, n, plan)[0]
        for d in (devices.card, devices.emulated)
    )
    shape = (len(listed), n)
    found = differences(
        [one.name for one in listed],
        card.reshape(shape),
        emulated.reshape(shape),
        lambda at: [hexadecimal(x[at]) for x in family.inputs],
    )
    record(devices, family.name, len(listed), n, found)
    differing = {d.instruction for d in found}
    rows = {one.name: r for one, r in zip(listed, card.reshape(shape), strict=True)}
    keep(family.name, family.inputs, {k: r for k, r in rows.items() if k in differing})
    return found


def keep(family: str, inputs: Sequence[Array], results: Mapping[str, Array]) -> None:
    """Write the card's results to the folder that the environment names, if there are any."""
    folder = os.environ.get("GPULAB_EQUALITY_DUMP")
    if folder and results:
        Path(folder).mkdir(parents=True, exist_ok=True)
        arrays = {f"x{i}": x for i, x in enumerate(inputs)} | dict(results)
        name = "".join(c if c.isalnum() else "_" for c in family)
        np.savez_compressed(Path(folder) / f"{name}.npz", **arrays)


def hexadecimal(code: Any) -> str:
    """A code with all its digits."""
    return f"{int(code):#0{2 + 2 * code.itemsize}x}"


def differences(
    names: Sequence[str], card: Array, emulated: Array, inputs: Callable[[int], list[str]]
) -> list[Difference]:
    """Rows of results compared.

    Args:
        names: of the rows.
        card: codes (rows, n).
        emulated: likewise.
        inputs: the input bits of column ``at``, as texts.
    """
    found = []
    for name, mine, other in zip(names, card, emulated, strict=True):
        at = np.flatnonzero(mine != other)
        if at.size:
            chosen = at[np.unique(np.linspace(0, at.size - 1, SHOWN).astype(int))]
            shown = [(inputs(int(i)), hexadecimal(mine[i]), hexadecimal(other[i])) for i in chosen]
            found.append(Difference(name, int(at.size), shown))
    return found


def record(
    devices: Devices, family: str, instructions: int, inputs: int, found: Sequence[Difference]
) -> None:
    """Keep the outcome of a family; append it to the report that the environment names."""
    line = {
        "schema": 1,
        "family": family,
        "instructions": instructions,
        "inputs": inputs,
        "differing": sum(d.count for d in found),
        "differences": [
            {
                "instruction": d.instruction,
                "differing": d.count,
                "first": [
                    {"inputs": x, "card": card, "emulated": emulated}
                    for x, card, emulated in d.shown
                ],
            }
            for d in found
        ],
        "environment": environment(devices.card),
    }
    devices.records.append(line)
    report = os.environ.get("GPULAB_EQUALITY_REPORT")
    if report:
        with Path(report).open("a") as out:
            out.write(json.dumps(line) + "\n")


def check(devices: Devices, family: Family) -> None:
    """``compare``, and fail with every difference.

    Raises:
        AssertionError: lists them.
    """
    same(family.name, compare(devices, family))


def same(name: str, found: Sequence[Difference]) -> None:
    """Nothing may differ.

    Raises:
        AssertionError: lists what does.
    """
    assert not found, f"{name}: {len(found)} instructions differ\n" + "\n".join(map(str, found))
