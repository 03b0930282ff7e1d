"""A submission in its worker as the plain function that the gates call.

Only inputs go to the worker, only raw outputs come back. The digests of the inputs as the kernel
left them are compared here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab import ops
from gpulab.check.client import Client
from gpulab.check.submission import Launch
from gpulab.check.wire import Message
from gpulab.check.worker import digest, params_to
from gpulab.emulator.values import UNSET
from gpulab.errors import FaultError
from gpulab.exercises.base import Exercise
from gpulab.numerics.repeat import repeated
from gpulab.ops.base import RunResult
from gpulab.registry import LaunchPlan

BASE_BUDGET = 200_000
BUDGET_PER_FLOP = 32
MAX_BUDGET = 10_000_000
"""Instructions of a launch on the emulated device: enough for one thread to do all the work."""


@dataclass(frozen=True)
class Code:
    """A compiled submission.

    Args:
        ptx: the text.
        entry: its symbol.
        abi: how arrays are passed.
        launch: its launch expressions.
        log: what the compiler said.
    """

    ptx: str
    entry: str
    abi: Literal["c", "numba"]
    launch: Launch
    log: str = ""


@dataclass
class Submitted:
    """A compiled submission on an opened device; call it with inputs, at one set of dims at a time.

    Args:
        client: its worker.
        code: what to run.
        exercise: gives parameters and the operation.
        seconds: wall-clock limit of one launch.

    Attributes:
        repeats: whether the last launch at the timed size gave what the first on these inputs did.
    """

    client: Client
    code: Code
    exercise: Exercise
    seconds: float
    dims: dict[str, int] = field(default_factory=dict)
    mode: str = "plain"
    blocks: Sequence[int] | None = None
    most: int | None = None
    unset: int = UNSET
    scalars: Mapping[str, float] = field(default_factory=dict)
    last: Message = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    printed: str = ""
    launches: int = 0
    timed: dict[str, dict[str, str]] = field(default_factory=dict)
    repeats: bool = True

    def load(self) -> Message:
        """Load the module afresh."""
        answer, _ = self.client.ask(
            {
                "do": "build",
                "ptx": self.code.ptx,
                "entry": self.code.entry,
                "abi": self.code.abi,
                "params": params_to(self.exercise.params),
            },
            seconds=self.seconds,
            doing="loading the kernel",
        )
        return answer

    def at(
        self,
        dims: Mapping[str, int],
        mode: str = "plain",
        blocks: Sequence[int] | None = None,
        most: int | None = None,
        scalars: Mapping[str, float] | None = None,
        unset: int = UNSET,
    ) -> Submitted:
        """The same at other dims.

        Args:
            dims: by name.
            mode: of the emulated device.
            blocks: run these alone (emulated device); None: all.
            most: instructions that a launch may take there; None: as the work needs.
            scalars: values in the stead of the operation's own.
            unset: bits of registers and local memory there before anything is put into them.
        """
        self.dims, self.mode, self.blocks, self.most = dict(dims), mode, blocks, most
        self.scalars, self.unset = scalars or {}, unset
        return self

    def plan(self) -> LaunchPlan:
        """Its launch shape at the present dims."""
        return self.code.launch.plan(self.dims)

    def wire_plan(self) -> list[Any]:
        """The launch shape as the worker reads it."""
        plan = self.plan()
        return [list(plan.grid), list(plan.block), plan.shared_bytes]

    @property
    def budget(self) -> int:
        """Instructions a launch may take on the emulated device."""
        if self.most is not None:
            return self.most
        flops = ops.get(self.exercise.op).flops(self.dims)
        return min(MAX_BUDGET, BASE_BUDGET + BUDGET_PER_FLOP * flops)

    @property
    def numbers(self) -> dict[str, Any]:
        """What the kernel takes by value: dims and the operation's scalars."""
        op = ops.get(self.exercise.op)
        return {**self.dims, **op.scalars(self.exercise.variant, self.dims), **self.scalars}

    def __call__(self, inputs: Mapping[str, NDArray[Any]], *, poison: int) -> RunResult:
        """One launch on fresh memory.

        Raises:
            GpulabError: a fault, a timeout, a launch shape that no device takes.
        """
        taken = {p.name: p.dims[0] for p in self.exercise.params if p.role == "in"}
        sent = {
            name: np.ascontiguousarray(repeated(a, self.dims.get(taken[name], len(a))))
            for name, a in inputs.items()
            if name in taken
        }
        shown = " ".join(f"{k}={v}" for k, v in self.dims.items())
        message = {
            "do": "run",
            "dims": self.numbers,
            "plan": self.wire_plan(),
            "poison": poison,
            "mode": self.mode,
            "budget": self.budget,
            "blocks": None if self.blocks is None else list(self.blocks),
            "unset": self.unset,
        }
        answer, outputs = self.client.ask(
            message, sent, seconds=self.seconds, doing=f"the kernel at {shown}"
        )
        self.launches += 1
        self.last = answer
        self.changed |= {str(name) for name in answer.get("state", [])}
        self.printed = self.printed or str(answer.get("printed", ""))
        if not isinstance(answer.get("inputs"), dict):
            raise FaultError("the worker sent a malformed answer", fault="crash")
        given = {name: digest(a) for name, a in sent.items()}
        unchanged = all(answer["inputs"].get(name) == mine for name, mine in given.items())
        if self.dims == dict(self.exercise.timed):
            found = {name: digest(a) for name, a in outputs.items()}
            self.repeats = self.timed.setdefault(str(sorted(given.items())), found) == found
        return RunResult(outputs=outputs, inputs_unchanged=unchanged)

    def scramble(self, byte: int) -> None:
        """Fill the module's variables that launches have changed with a byte."""
        message = {"do": "scramble", "byte": byte, "names": sorted(self.changed)}
        self.client.ask(message, seconds=self.seconds, doing="setting module state")
