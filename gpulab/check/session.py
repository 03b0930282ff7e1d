"""One submission while it is checked: its code, what it is judged by, its cases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import arch, ops
from gpulab.check import building, ptx
from gpulab.check.client import MEMORY_BYTES, Client
from gpulab.check.evidence import Result
from gpulab.check.runner import Code, Submitted
from gpulab.check.subject import Arrays, Setting, get_subject
from gpulab.check.submission import Submission
from gpulab.check.token import Token
from gpulab.errors import FaultError, GpulabError, KernelTimeoutError, UsageError
from gpulab.exercises.base import Exercise, Shape
from gpulab.numerics import structure
from gpulab.numerics.cache import Cache
from gpulab.numerics.verdict import Judgement
from gpulab.registry import Capability

LAUNCH_SECONDS = 60.0


@dataclass(frozen=True)
class Options:
    """How submissions are checked.

    Args:
        device: ``cuda`` or ``emulated``.
        capability: of the emulated device.
        seed: of all inputs; None: drawn now, so that nobody could know it.
        trusted: Python submissions may run unconfined where they cannot be confined.
        seconds: wall-clock limit of one launch.
        memory_bytes: limit of the worker.
        only: judge this case alone.
        timed: on a card, time too; without one, look at a few blocks of the timed size.
    """

    device: str = "emulated"
    capability: Capability = arch.DEFAULT_EMULATED
    seed: int | None = None
    trusted: bool = False
    seconds: float = LAUNCH_SECONDS
    memory_bytes: int = MEMORY_BYTES
    only: Token | None = None
    timed: bool = True


_UNFORESEEN = 72


def unforeseen(exercise: Exercise, seed: int) -> Shape:
    """A case whose dims follow from the seed: no file can have been written for it."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _UNFORESEEN])))
    return Shape(exercise.draw(rng), "dims drawn from the seed", exercise.shapes[0].families)


class Check:
    """A parsed submission, its exercise, and the evidence collected so far."""

    def __init__(
        self,
        result: Result,
        parsed: Submission,
        exercise: Exercise,
        options: Options,
        seed: int,
        cache: Cache,
        progress: Callable[[str], object],
        workers: type[Client],
    ) -> None:
        self.result, self.parsed, self.exercise = result, parsed, exercise
        self.options, self.seed, self.cache, self.progress = options, seed, cache, progress
        self.workers = workers
        self.subject = get_subject(exercise.op)
        self.capability = options.capability
        self.judged: list[tuple[Shape, Judgement]] = []
        self.unwatched = ""
        self.present: Shape | None = None
        self.beside: list[tuple[Shape, Arrays]] = []

    def compile(self, client: Client, compiler: Client) -> Submitted:
        """Compile it, load it, and note what its code says about it.

        Args:
            client: the worker that runs it.
            compiler: the worker that compiles it, which is confined. On the emulated device the
                same; beside a card another, which also runs it where it can be looked into.

        Raises:
            GpulabError: it does not compile or load, or the device cannot run the exercise.
        """
        opened = self._open(client, self.options.device)
        self.capability = (int(opened["capability"][0]), int(opened["capability"][1]))
        self._able()
        code, held = building.build(
            self.parsed, self.exercise, compiler, self.capability, trusted=self.options.trusted
        )
        self.result.facts["isolation"] = {**client.held, **held}
        self.instructions = ptx.tensor_instructions(code.ptx, self.capability)
        self.atomics = ptx.adds_atomically(code.ptx)
        self.narrow = ptx.narrow_formats(code.ptx)
        submitted = Submitted(client, code, self.exercise, self.options.seconds)
        loaded = submitted.load()
        static = (loaded["resources"] or {}).get("shared_bytes") or 0
        submitted.at(self.exercise.shapes[1].dims)
        self.shared_bytes = static + submitted.plan().shared_bytes
        self.result.facts.update(
            device_name=opened["name"],
            capability=arch.dotted(self.capability),
            instructions=self.instructions,
            resources=loaded["resources"],
        )
        self.watched: Submitted | None = submitted
        if compiler is not client:
            self.watched = self._watch(compiler, code)
        return submitted

    def _watch(self, client: Client, code: Code) -> Submitted | None:
        """The same code on the emulated device, which sees what a card does not show."""
        watched = Submitted(client, code, self.exercise, self.options.seconds)
        try:
            if self.capability not in arch.EMULATED:
                raise UsageError(f"{arch.sm(self.capability)} is not emulated")
            self._open(client, "emulated")
            watched.load()
        except GpulabError as error:
            self.unwatched = error.message
            return None
        return watched

    def watch(self, shape: Shape) -> None:
        """Beside a card: launch once on the emulated device, which stops at what is illegal.

        What it returns is kept: ``unset.judge`` compares it with a launch that finds other values.

        Raises:
            GpulabError: a fault, or a launch shape that no device takes.
        """
        if self.watched is None or self.options.device != "cuda" or shape == self.timed_shape:
            return
        try:
            self.watched.load()
            run = self.watched.at(shape.dims)
            got = run(self.stored(shape), poison=structure.POISONS[0]).outputs
            self.beside.append((shape, got))
        except KernelTimeoutError as error:
            if not self.judged:  # of the smallest shape
                raise
            self.watched, self.unwatched = None, error.message

    def _able(self) -> None:
        """Refuse a device that cannot run the exercise: no verdict about the submission."""
        lowest = self.exercise.min_capability
        if self.capability < lowest:
            raise UsageError(
                f"{self.exercise.name} needs a capability of at least {arch.dotted(lowest)}",
                fix=f"--device emulated --capability {arch.dotted(lowest)}",
                refused=True,
            )

    def _open(self, client: Client, device: str) -> dict[str, Any]:
        message = {"do": "open", "device": device, "capability": list(self.capability)}
        seconds = building.COMPILE_SECONDS
        try:
            opened, _ = client.ask(message, seconds=seconds, doing="opening the device")
        except (FaultError, KernelTimeoutError) as error:  # nothing of the submission ran yet
            raise UsageError(error.message, fix="see 'gpulab doctor'", refused=True) from None
        return opened

    # -- what it is judged by ---------------------------------------------------------------------

    def setting(self, dims: Mapping[str, int]) -> Setting:
        """What a case is judged under."""
        row = self.subject.row(self.exercise.variant, self.instructions, self.capability, dims)
        return Setting(row, self.capability, self.atomics, dims, self.seed, self.narrow)

    def token(self, shape: Shape) -> Token:
        """What reproduces a case."""
        device = self.options.device
        return Token(self.exercise.name, self.seed, dict(shape.dims), device, self.capability)

    @contextlib.contextmanager
    def about(self, shape: Shape) -> Iterator[None]:
        """Errors that end the check in here are of this case: their token names it."""
        self.present = shape
        yield
        self.present = None

    @property
    def timed_token(self) -> Token:
        """Of the size that is timed."""
        return self.token(self.timed_shape)

    @property
    def longest_token(self) -> Token | None:
        """Of the case with more terms than the size that is timed."""
        return None if self.exercise.longest is None else self.token(self.exercise.longest)

    @property
    def timed_shape(self) -> Shape:
        """The size that is timed."""
        families = self.exercise.shapes[0].families[:2]
        return Shape(dict(self.exercise.timed), "the size that is timed", families)

    def shapes(self) -> list[Shape]:
        """The cases to judge."""
        shapes = [*self.exercise.shapes, unforeseen(self.exercise, self.seed)]
        if self.options.device == "cuda":
            shapes.append(self.timed_shape)
        only = self.options.only
        if only is None:
            return shapes
        if only == self.longest_token or (
            only == self.timed_token and self.options.device == "emulated"
        ):
            return []  # looked at apart
        same = [s for s in shapes if dict(s.dims) == dict(only.dims)]
        if not same:
            raise UsageError(
                f"{only} names a case that {self.exercise.name} does not have",
                fix="copy the token whole from the checker's output",
            )
        return same

    def judge(self, shape: Shape, submitted: Submitted) -> None:
        """Judge one case."""
        op = ops.get(self.exercise.op)
        self.judged.append(
            (
                shape,
                op.judge(
                    self.setting(shape.dims).variant,
                    shape.dims,
                    submitted,
                    capability=self.capability,
                    families=shape.families,
                    seed=self.seed,
                    effort=shape.effort,
                    atomics=self.atomics,
                    cache=self.cache,
                ),
            )
        )

    def failing(self) -> tuple[Shape, Judgement] | None:
        """The failing case that says most: the fully probed one, else the first."""
        failing = [(s, j) for s, j in self.judged if j.verdict == "FAIL"]
        full = [pair for pair in failing if pair[0].effort == "full"]
        return (full or failing or [None])[0]  # type: ignore[list-item]

    def stored(self, shape: Shape) -> Arrays:
        """The stored inputs of the first family of a case."""
        inputs = self.subject.inputs(self.setting(shape.dims), shape.families[0])
        assert inputs is not None  # families of exercises exist
        return inputs
