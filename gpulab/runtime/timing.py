"""How long a kernel takes on a card: event pairs, a flushed L2, fresh inputs, verified outputs.

Each run queues, on one stream: filling the output with poison; overwriting a buffer of at least
twice the L2, often enough to keep the card busy until the host has queued everything that follows
(so that no launch latency falls between the events); an event, the kernel, an event. If the card
reaches the first event before the host has queued the last one, the run is discarded and repeated
with twice the backlog. Then the host waits for the whole device, so that work on other streams
counts too, and verifies the output of the timed run. Copies are never between the events.

A kernel under 50 us is timed as a graph of many launches that rotate over the input sets (or, if it
cannot be captured, as that many launches behind a backlog), and the window is divided by their
number. Variants are interleaved, A B A B, so that a drift of the clocks affects all of them alike.

Nothing here imports CuPy: a ``Clock`` is what a card offers, and the tests offer a fake one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from gpulab.errors import UsageError
from gpulab.runtime.summary import Summary, summarize
from gpulab.runtime.telemetry import Telemetry

GRAPH_BELOW_MS = 0.050
WINDOW_MS = 0.5
"""Intended length of a window of many launches; an event resolves about half a microsecond."""
MIN_LAUNCHES, MAX_LAUNCHES = 10, 500
MAX_BACKLOG = 256
_PILOTS = 3
HOST_INCLUDED = "the host queues slower than the card runs: host time is included"


class Clock(Protocol):
    """What timing needs from a card. Work is only queued; ``synchronize`` alone waits for it."""

    l2_bytes: int
    flush_bytes: int

    def flush(self) -> None:
        """Overwrite a buffer of ``flush_bytes``."""

    def record(self) -> Any:
        """Queue an event."""

    def passed(self, event: Any) -> bool:
        """Whether the card has reached an event."""

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two events that have passed."""

    def synchronize(self) -> None:
        """Wait for the whole device."""

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Capture what ``body`` queues as a graph, and return what replays it.

        Raises:
            CaptureError: something in it cannot be captured.
        """

    def telemetry(self) -> Telemetry:
        """Clocks and power now."""

    def host_ms(self) -> float:
        """A monotonic host clock."""


class CaptureError(Exception):
    """Work that cannot be captured as a graph; the message says why."""


def _nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class Subject:
    """A kernel bound to several sets of inputs and outputs.

    Args:
        launch: queue one run on set i.
        sets: number of sets.
        set_bytes: bytes of inputs and outputs of one set.
        refill: queue filling the output of set i with poison.
        verify: inspect the output of set i after it was timed; why it is wrong, or None.
        most: launches of a window at most; with ``sets`` none finds what another left behind.
    """

    launch: Callable[[int], object]
    sets: int
    set_bytes: int
    refill: Callable[[int], object] = _nothing
    verify: Callable[[int], str | None] = _nothing
    most: int = MAX_LAUNCHES


@dataclass
class Timing:
    """The times of one subject and how they were taken.

    Args:
        method: ``events`` (one launch in a window), ``graph`` or ``batch`` (many).
        launches: launches in a window.
        l2: state of the L2 that a launch finds: ``flushed``; ``rotated``: the sets together are at
            least twice the L2; ``warm``: they are not, and the time is that of a warm cache.
        sets: input sets that the launches rotate over.
        warmup: untimed runs beforehand.
        flush_bytes: bytes overwritten before each window, ``backlog`` times.
        backlog: see ``flush_bytes``.
        discarded: windows that the card reached before the host had queued them.
        samples_ms: milliseconds a launch, one sample for each run, in order.
        verified: number of outputs that were inspected after being timed.
        wrong: what was wrong with them.
        before: clocks and power at the first run.
        after: clocks and power at the last run.
        note: why ``batch`` was used, or that the host could not keep ahead of the card.
    """

    method: Literal["events", "graph", "batch"]
    launches: int
    l2: Literal["flushed", "rotated", "warm"]
    sets: int
    warmup: int
    flush_bytes: int
    backlog: int
    discarded: int = 0
    samples_ms: list[float] = field(default_factory=list)
    verified: int = 0
    wrong: list[str] = field(default_factory=list)
    before: Telemetry | None = None
    after: Telemetry | None = None
    note: str = ""

    @property
    def summary(self) -> Summary:
        """Median, min, p90 and count, in milliseconds a launch."""
        return summarize(self.samples_ms)

    def time_ms(self) -> dict[str, float | int]:
        """The record's ``time_ms``."""
        return asdict(self.summary)

    def details(self) -> dict[str, Any]:
        """The record's further fields about how the time was taken."""
        return {
            "method": self.method,
            "launches_per_window": self.launches,
            "l2": self.l2,
            "input_sets": self.sets,
            "warmup": self.warmup,
            "flush_bytes": self.flush_bytes,
            "backlog": self.backlog,
            "discarded": self.discarded,
            "verified": self.verified,
            "wrong": list(self.wrong),
            "samples_ms": list(self.samples_ms),
            "telemetry_before": self.before.to_record() if self.before else None,
            "telemetry_after": self.after.to_record() if self.after else None,
            "note": self.note,
        }


def rotation_sets(set_bytes: int, l2_bytes: int, at_most: int = 16) -> int:
    """Number of input sets that together fill twice the L2, within 2 .. ``at_most``."""
    return max(2, min(at_most, math.ceil(2 * l2_bytes / max(1, set_bytes))))


def time_kernel(clock: Clock, subject: Subject, *, runs: int = 10, warmup: int = 3) -> Timing:
    """Time one kernel; see ``time_interleaved``."""
    return time_interleaved(clock, {"": subject}, runs=runs, warmup=warmup)[""]


def time_interleaved(
    clock: Clock, subjects: Mapping[str, Subject], *, runs: int = 10, warmup: int = 3
) -> dict[str, Timing]:
    """Timings by name of several kernels that take turns: each runs once, then each runs again.

    Args:
        clock: the card.
        subjects: by name, in the order in which they take turns.
        runs: timed windows of each subject.
        warmup: untimed runs of each subject beforehand.

    Raises:
        UsageError: no runs, or a subject without input sets.
        FaultError: a kernel did something illegal.
    """
    if runs < 1 or warmup < 0:
        raise UsageError(f"{runs} runs after {warmup} warm-ups: at least one run is needed")
    if any(subject.sets < 1 for subject in subjects.values()):
        raise UsageError("nothing to time: a kernel has no input set")
    lead_ms = _lead_of_a_flush(clock)
    lanes = {n: _Lane(clock, s, warmup, lead_ms) for n, s in subjects.items()}
    for run in range(runs):
        for lane in lanes.values():
            lane.run(run, first=run == 0, last=run == runs - 1)
    return {name: lane.timing for name, lane in lanes.items()}


def _lead_of_a_flush(clock: Clock) -> float:
    """Milliseconds by which queueing one flush puts the host ahead of the card."""
    clock.flush()
    clock.synchronize()
    begun = clock.host_ms()
    start = clock.record()
    for _ in range(8):
        clock.flush()
    stop = clock.record()
    queueing = clock.host_ms() - begun
    clock.synchronize()
    return max(1e-4, (clock.elapsed_ms(start, stop) - queueing) / 8)


class _Lane:
    """One subject: warmed up, its method chosen by a pilot measurement, then run by run."""

    def __init__(self, clock: Clock, subject: Subject, warmup: int, lead_ms: float) -> None:
        self.clock, self.subject, self.lead_ms = clock, subject, lead_ms
        for i in range(warmup):
            subject.launch(i % subject.sets)
        clock.synchronize()
        self.start: Callable[[int], object] = subject.launch
        self.timing = Timing("events", 1, "flushed", subject.sets, warmup, clock.flush_bytes, 1)
        pilot_ms = self._pilot()
        if pilot_ms < GRAPH_BELOW_MS and subject.most > 1:
            self._many_launches(pilot_ms, warmup)

    def _queue(self, index: int) -> tuple[Any, Any, float]:
        """Queue one window; its events, and the host's milliseconds to queue it."""
        for _ in range(self.timing.backlog):
            self.clock.flush()
        begun = self.clock.host_ms()
        start = self.clock.record()
        self.start(index)
        stop = self.clock.record()
        return start, stop, self.clock.host_ms() - begun

    def _window(
        self, index: int, before: Callable[[], Any] = _nothing, during: Callable[[], Any] = _nothing
    ) -> float:
        """Milliseconds of a window that was queued before the card reached it.

        Args:
            index: input set.
            before: queues what precedes the backlog.
            during: called while the card works.
        """
        while True:
            before()
            start, stop, _ = self._queue(index)
            late = self.clock.passed(start)
            during()
            self.clock.synchronize()
            if late and self.timing.backlog == MAX_BACKLOG:
                self.timing.note = HOST_INCLUDED
            if not late or self.timing.backlog == MAX_BACKLOG:
                return self.clock.elapsed_ms(start, stop)
            self.timing.discarded += 1
            self.timing.backlog = min(MAX_BACKLOG, 2 * self.timing.backlog)

    def _pilot(self) -> float:
        """Choose the backlog for the current way to launch; return milliseconds of a window."""
        queueing = []
        for i in range(_PILOTS):
            queueing.append(self._queue(i % self.subject.sets)[2])
            self.clock.synchronize()
        wanted = math.ceil(1.5 * statistics.median(queueing) / self.lead_ms)
        self.timing.backlog = min(MAX_BACKLOG, max(1, wanted))
        return statistics.median(self._window(i % self.subject.sets) for i in range(_PILOTS))

    def _many_launches(self, pilot_ms: float, warmup: int) -> None:
        timing, subject = self.timing, self.subject
        wanted = math.ceil(WINDOW_MS / max(pilot_ms, 1e-4))
        count = min(MAX_LAUNCHES, subject.most, max(MIN_LAUNCHES, wanted))

        def body() -> None:
            for i in range(count):
                subject.launch(i % subject.sets)

        timing.launches = count
        cold = subject.sets * subject.set_bytes >= 2 * self.clock.l2_bytes
        timing.l2 = "rotated" if cold else "warm"
        try:
            replay = self.clock.capture(body)
            timing.method = "graph"
        except CaptureError as error:
            replay, timing.method, timing.note = body, "batch", f"no graph: {error}"
        self.start = lambda _: replay()
        for _ in range(warmup):
            replay()
        self.clock.synchronize()
        self._pilot()

    def run(self, number: int, *, first: bool, last: bool) -> None:
        """Time one window, then verify what it computed."""
        timing, subject = self.timing, self.subject
        index = number % subject.sets
        touched = [index] if timing.launches == 1 else range(min(subject.sets, timing.launches))

        def refill() -> None:
            for each in touched:
                subject.refill(each)

        def look() -> None:
            if first:
                timing.before = self.clock.telemetry()
            if last:
                timing.after = self.clock.telemetry()

        timing.samples_ms.append(self._window(index, refill, look) / timing.launches)
        for each in touched:
            timing.verified += 1
            reason = subject.verify(each)
            if reason is not None:
                timing.wrong.append(f"run {number}, set {each}: {reason}")
