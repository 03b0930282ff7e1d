"""Timing over a simulated card: a queue that works off kernels in virtual time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.errors import UsageError
from gpulab.runtime import timing
from gpulab.runtime.summary import summarize
from gpulab.runtime.telemetry import Telemetry
from gpulab.runtime.timing import (
    CaptureError,
    Subject,
    rotation_sets,
    time_interleaved,
    time_kernel,
)


class SimulatedCard:
    """Host and card with clocks of their own: work starts when the host has queued it.

    Args:
        queue_ms: host time to queue one operation.
        flush_ms: card time of one flush.
        graphs: whether work can be captured.
    """

    l2_bytes = 1000
    flush_bytes = 2000

    def __init__(self, queue_ms=0.01, flush_ms=0.05, graphs=True):
        self.queue_ms, self.flush_ms, self.graphs = queue_ms, flush_ms, graphs
        self.host = self.card = 0.0
        self.log = []
        self.captured = None

    def work(self, name, ms, queue_ms=None):
        if self.captured is not None:
            self.captured.append((name, ms))
            return
        self.host += self.queue_ms if queue_ms is None else queue_ms
        self.card = max(self.card, self.host) + ms  # idle until the host has queued it
        self.log.append(name)

    def flush(self):
        self.work("flush", self.flush_ms, queue_ms=0.003)

    def record(self):
        self.work("event", 0.0)
        return self.card

    def passed(self, event):
        return event <= self.host

    def elapsed_ms(self, start, stop):
        return stop - start

    def synchronize(self):
        self.host = self.card = max(self.host, self.card)
        self.log.append("sync")

    def capture(self, body):
        if not self.graphs:
            raise CaptureError("a copy is not permitted")
        self.captured = []
        body()
        graph, self.captured = self.captured, None

        def replay():
            self.host += self.queue_ms
            for name, ms in graph:
                self.work(name, ms, queue_ms=0.0)

        return replay

    def telemetry(self):
        self.log.append("telemetry")
        return Telemetry(sm_clock_mhz=1980)

    def host_ms(self):
        return self.host


def kernel(card, ms, name="kernel", sets=3, set_bytes=1000, **more):
    return Subject(lambda i: card.work(f"{name}{i}", ms), sets, set_bytes, **more)


def test_the_time_is_the_kernels_not_the_hosts():
    """Queueing takes longer than the kernel: flushes keep the card busy meanwhile."""
    card = SimulatedCard(queue_ms=0.2, flush_ms=0.05)
    measured = time_kernel(card, kernel(card, 0.1))
    assert measured.method == "events"
    assert measured.backlog * 0.05 >= 3 * 0.2  # an event, the kernel, an event
    assert measured.summary.median == pytest.approx(0.1)


def test_without_the_backlog_the_host_would_be_in_it(monkeypatch):
    monkeypatch.setattr(timing, "MAX_BACKLOG", 1)
    card = SimulatedCard(queue_ms=0.2, flush_ms=0.05)
    measured = time_kernel(card, kernel(card, 0.1))
    assert measured.summary.median > 0.2
    assert "host time is included" in measured.note


def test_a_flush_puts_the_host_ahead_by_what_it_takes_longer_than_to_queue():
    class Slow(SimulatedCard):
        def flush(self):
            self.work("flush", self.flush_ms, queue_ms=0.03)

    assert timing._lead_of_a_flush(Slow(flush_ms=0.05)) == pytest.approx(0.02, abs=0.002)
    assert timing._lead_of_a_flush(Slow(flush_ms=0.02)) == 1e-4, "never ahead: the least there is"


def test_a_window_the_host_fell_behind_in_is_measured_again():
    """The host stalls once while it queues: that run's time would be its own, not the kernel's."""
    card = SimulatedCard(queue_ms=0.01, flush_ms=0.05)
    started, refilled = [], []

    def launch(i):
        started.append(i)
        card.host += 1.0 if len(started) == 12 else 0.0
        card.work(f"kernel{i}", 0.1)

    subject = Subject(launch, 3, 1000, refill=refilled.append)
    measured = time_kernel(card, subject)
    assert len(started) == 3 + 2 * timing._PILOTS + 10 + measured.discarded
    assert measured.discarded >= 1
    assert len(refilled) == 10 + measured.discarded
    assert len(measured.samples_ms) == 10
    assert measured.samples_ms == pytest.approx([0.1] * 10)
    assert measured.note == ""
    assert measured.details()["discarded"] == measured.discarded


def test_defaults_are_three_warm_ups_and_ten_runs():
    card = SimulatedCard()
    measured = time_kernel(card, kernel(card, 0.1))
    assert measured.summary.runs == 10
    assert measured.warmup == 3
    first = card.log.index("kernel0")
    assert card.log[first : first + 4] == ["kernel0", "kernel1", "kernel2", "sync"]


def windows(card):
    """The operations of each timed window: from the last sync before an event pair to the next."""
    chunks, current = [], []
    for entry in card.log:
        current.append(entry)
        if entry == "sync":
            chunks.append(current)
            current = []
    return chunks


def test_each_run_is_refilled_flushed_and_synchronised_outside_the_events():
    card = SimulatedCard()
    refill = lambda i: card.work(f"poison{i}", 0.01)  # noqa: E731
    time_kernel(card, kernel(card, 0.1, refill=refill), runs=4, warmup=0)
    runs = [w for w in windows(card) if any(e.startswith("poison") for e in w)]
    assert len(runs) == 4
    for number, run in enumerate(runs):
        assert [e for e in run if e not in ("flush", "telemetry")] == [
            f"poison{number % 3}", "event", f"kernel{number % 3}", "event", "sync",
        ]  # fmt: skip
        assert run.index("flush") < run.index("event")
        assert run[run.index("event") - 1] == "flush"


def test_inputs_rotate_and_every_timed_output_is_verified():
    card = SimulatedCard()
    seen = []
    verify = lambda i: seen.append(i)  # noqa: E731
    measured = time_kernel(card, kernel(card, 0.1, verify=verify), runs=7)
    assert seen == [0, 1, 2, 0, 1, 2, 0]
    assert measured.verified == 7
    assert measured.wrong == []


def test_a_wrong_timed_output_is_reported_with_its_run():
    card = SimulatedCard()
    calls = iter(range(100))
    verify = lambda i: "element 3 differs" if next(calls) == 4 else None  # noqa: E731
    measured = time_kernel(card, kernel(card, 0.1, verify=verify), runs=6)
    assert measured.wrong == ["run 4, set 1: element 3 differs"]
    assert measured.verified == 6


def test_variants_take_turns():
    card = SimulatedCard()
    subjects = {n: kernel(card, ms, n, sets=2) for n, ms in (("a", 0.1), ("b", 0.3))}
    measured = time_interleaved(card, subjects, runs=3, warmup=0)
    assert measured["a"].summary.median == pytest.approx(0.1)
    assert measured["b"].summary.median == pytest.approx(0.3)
    timed = [e for e in card.log if e[0] in "ab"][-6:]
    assert timed == ["a0", "b0", "a1", "b1", "a0", "b0"]


def test_short_kernels_are_timed_as_a_graph():
    card = SimulatedCard(queue_ms=0.02)
    measured = time_kernel(card, kernel(card, 0.002, sets=4))
    assert measured.method == "graph"
    assert measured.launches == 250  # 0.5 ms of 2 us
    assert measured.summary.median == pytest.approx(0.002)
    assert measured.verified == 10 * 4  # every set that a window touched
    last = [e for e in card.log if e.startswith("kernel")][-250:]
    assert last == [f"kernel{i % 4}" for i in range(250)]
    assert measured.l2 == "rotated"


def test_the_limit_between_one_launch_and_many_is_50_us():
    for ms, method in ((0.051, "events"), (0.049, "graph")):
        card = SimulatedCard()
        assert time_kernel(card, kernel(card, ms)).method == method


def test_launches_of_a_window_are_bounded():
    for ms, launches in ((0.0001, timing.MAX_LAUNCHES), (0.0499, 11), (0.03, 17)):
        card = SimulatedCard()
        assert time_kernel(card, kernel(card, ms)).launches == launches
    assert timing.MIN_LAUNCHES == 10


def test_what_cannot_be_captured_is_batched_and_says_so():
    card = SimulatedCard(queue_ms=0.001, graphs=False)
    measured = time_kernel(card, kernel(card, 0.004))
    assert measured.method == "batch"
    assert measured.note == "no graph: a copy is not permitted"
    assert measured.launches == 125
    assert measured.summary.median == pytest.approx(0.004)


def test_a_warm_cache_is_called_warm():
    card = SimulatedCard()
    assert time_kernel(card, kernel(card, 0.002, sets=3, set_bytes=666)).l2 == "warm"
    assert time_kernel(card, kernel(card, 0.002, sets=2, set_bytes=1000)).l2 == "rotated"
    assert time_kernel(card, kernel(card, 0.2, sets=2, set_bytes=1)).l2 == "flushed"


def test_telemetry_is_read_while_the_card_works():
    card = SimulatedCard()
    measured = time_kernel(card, kernel(card, 0.1), runs=3)
    assert measured.before == measured.after == Telemetry(sm_clock_mhz=1980)
    assert card.log.count("telemetry") == 2
    for at in (i for i, e in enumerate(card.log) if e == "telemetry"):
        assert card.log[at + 1] == "sync"  # before the run is waited for


def test_the_record_holds_how_it_was_timed():
    card = SimulatedCard()
    measured = time_kernel(card, kernel(card, 0.1), runs=5)
    assert set(measured.time_ms()) == {"median", "min", "p90", "runs"}
    details = measured.details()
    assert details["flush_bytes"] == 2000
    assert details["samples_ms"] == measured.samples_ms
    assert details["telemetry_after"]["sm_clock_mhz"] == 1980
    assert details["l2"] == "flushed"


def test_senseless_requests_are_refused():
    card = SimulatedCard()
    with pytest.raises(UsageError, match="0 runs"):
        time_kernel(card, kernel(card, 0.1), runs=0)
    with pytest.raises(UsageError, match="no input set"):
        time_kernel(card, kernel(card, 0.1, sets=0))


@pytest.mark.parametrize(
    ("set_bytes", "sets"), [(1, 16), (100, 16), (250, 8), (1000, 2), (10**9, 2), (0, 16)]
)
def test_sets_for_a_rotation(set_bytes, sets):
    assert rotation_sets(set_bytes, 1000) == sets


# -- statistics ------------------------------------------------------------------------------------


def test_figures_of_known_samples():
    assert summarize([5, 1, 4, 2, 3]).median == 3
    even = summarize([4.0, 1.0, 3.0, 2.0])
    assert (even.median, even.min, even.runs) == (2.5, 1.0, 4)
    ten = summarize([float(i) for i in range(10, 0, -1)])
    assert (ten.p90, ten.median) == (9.0, 5.5)  # nine of ten runs took 9 or less
    assert summarize([7.0]) == summarize([7.0])
    assert summarize([7.0]).p90 == 7.0
    assert summarize([1.0] * 10 + [100.0]).p90 == 1.0


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_figures_against_their_definitions(samples):
    got = summarize(samples)
    assert got.min == min(samples)
    assert got.median == pytest.approx(float(np.median(samples)))
    assert got.p90 in samples
    below = sum(s <= got.p90 for s in samples)
    assert below >= math.ceil(0.9 * len(samples))
    assert sum(s < got.p90 for s in samples) < 0.9 * len(samples)
    assert got.runs == len(samples)


@pytest.mark.parametrize("samples", [[], [0.0], [1.0, -1.0], [math.nan], [1.0, math.inf]])
def test_samples_that_are_no_times_are_refused(samples):
    with pytest.raises(ValueError, match="run"):
        summarize(samples)
