"""Ctrl-C: the first ends what runs, and what is known by then is shown; a second ends at once.

SIGTERM, which a scheduler sends when the time is up, counts as Ctrl-C.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from types import FrameType

from gpulab.errors import EXIT_INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard(*, ends_children: bool = False) -> Iterator[None]:
    """The first signal raises KeyboardInterrupt here, a second ends the process.

    A signal that the caller had ignored (``nohup``) stays so. Handlers are put back at the end,
    unless one was called: a process that is about to end still hears the second.

    Args:
        ends_children: the first ends the processes of ``multiprocessing`` too: nothing waits for
            what they are doing.
    """
    before = {each: signal.getsignal(each) for each in SIGNALS}
    ours = [each for each in SIGNALS if before[each] is not signal.SIG_IGN]
    waiting = True

    def first(_number: int, _frame: FrameType | None) -> None:
        nonlocal waiting
        waiting = False
        for each in ours:
            signal.signal(each, _end)
        if ends_children:
            _end_children()
        raise KeyboardInterrupt

    for each in ours:
        signal.signal(each, first)
    try:
        yield
    finally:
        if waiting:
            for each in ours:
                signal.signal(each, before[each])


def _end(_number: int, _frame: FrameType | None) -> None:
    """No clean end, which would wait for compilations that are under way."""
    _end_children()
    os._exit(EXIT_INTERRUPTED)


def _end_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()
