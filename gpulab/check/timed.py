"""Times on a card that nothing but the work of one launch can be in.

Nothing of an earlier launch helps a timed one: every launch of a window has inputs of its own and
outputs that were poisoned before it, the L2 is flushed and its persisting lines are made normal,
and a module that has variables is loaded afresh before each launch. Every timed output goes back to
the judge as a digest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.check.held import Held
from gpulab.check.wire import Arrays, Message
from gpulab.check.worker import digest, plan_from
from gpulab.numerics.structure import POISONS
from gpulab.registry import Param
from gpulab.runtime import timing
from gpulab.runtime.cuda_clock import clock_of
from gpulab.runtime.device import Device, Function
from gpulab.runtime.objects import PtxBuild

LEAST_SETS = 4
"""Input sets, each launched at most once a window: a window is not much shorter for it."""


def take(
    device: Device, request: tuple[PtxBuild, tuple[Param, ...]], message: Message, inputs: Arrays
) -> Message:
    """Time a submission.

    Args:
        device: the card.
        request: what to build, and its parameters.
        message: ``dims``, ``plan``, ``runs``, ``warmup``; ``set_bytes``: that one launch moves;
            ``moving``: axis of each array that is shifted, by ``first`` + i in set i, so that the
            right output is the judged one shifted; ``keeps``: the module has variables.
        inputs: of shift 0.

    Returns:
        ``time_ms``, ``timing``, ``outputs`` (set, name, digest) in the order they were timed, and
        ``peaks``: what the driver says about the card.
    """
    from gpulab.check.workbench import unload

    plan, clock = plan_from(message["plan"]), clock_of(device)
    moving, first, keeps = message["moving"], int(message["first"]), bool(message["keeps"])
    set_bytes = int(message["set_bytes"])
    count = max(LEAST_SETS, timing.rotation_sets(set_bytes, clock.l2_bytes))

    def load() -> Function:
        unload(device)
        return device.build(*request)

    function = load()

    def held(values: Arrays) -> Held:
        return Held(device, function, values, message["dims"], POISONS[0])

    sets = [
        held({n: np.roll(a, first + i, moving[n]) if n in moving else a for n, a in inputs.items()})
        for i in range(count)
    ]
    spare = held({n: np.zeros_like(a) for n, a in inputs.items()})
    starts = [one.bind(plan) for one in sets]
    seen: list[list[Any]] = []

    def prepare(i: int) -> None:
        if keeps:  # its first launch, which loads the code, is on other data
            sets[i].function = spare.function = load()
            starts[i] = sets[i].bind(plan)
            spare.bind(plan)()
        clock.reset_persisting()
        for array in sets[i].outputs.values():
            device.refill(array, POISONS[0])

    def verify(i: int) -> None:
        sets[i].check_guards()
        for name, array in sets[i].outputs.items():
            seen.append([i, name, digest(device.download(array))])

    subject = timing.Subject(
        lambda i: starts[i](), count, set_bytes, prepare, verify, 1 if keeps else count
    )
    try:
        taken = timing.time_kernel(
            clock, subject, runs=int(message["runs"]), warmup=int(message["warmup"])
        )
    finally:
        for one in (*sets, spare):
            one.free()
    return {
        "time_ms": taken.time_ms(),
        "timing": taken.details(),
        "outputs": seen,
        "peaks": clock.peaks(),
    }
