"""Several judges and several cards: which card a judge has, and whose turn it is on one.

A judge is pinned to one card by CUDA_VISIBLE_DEVICES. Judges share a card while they check and have
it alone while they time, so that no other submission is in a time. Turns are file locks: they end
with the process that holds them, however it ends, and hold between commands of one user too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpulab.runtime import driver

VISIBLE = "CUDA_VISIBLE_DEVICES"


def usable() -> tuple[str, ...]:
    """The visible cards that are alike, as CUDA_VISIBLE_DEVICES names them; no context is made.

    Cards of another model than the first usable one are left out: times of one folder are of one
    model.
    """
    found = driver.query()
    first = None if found is None else found.usable()
    if found is None or first is None:
        return ()
    named = _named()
    alike = [c for c in found.cards if (c.name, c.capability) == (first.name, first.capability)]
    return tuple(named[c.index] if c.index < len(named) else str(c.index) for c in alike)


def pin(card: str) -> None:
    """This process and those below it use that card alone."""
    os.environ[VISIBLE] = card


def _named() -> list[str]:
    return [part.strip() for part in os.environ.get(VISIBLE, "").split(",") if part.strip()]


class Turn:
    """Whose turn it is on this process's card.

    Args:
        card: its name; by default the first visible one.
        folder: where the lock files lie.
    """

    def __init__(self, card: str | None = None, folder: Path | None = None) -> None:
        name = re.sub(r"[^\w-]", "_", card or (_named() or ["0"])[0])
        place = folder or Path(tempfile.gettempdir())
        stem = f"gpulab-{os.getuid()}-card-{name}"
        # Who waits to be alone holds the gate, so that others cannot keep coming in before.
        self.gate, self.use = (place / f"{stem}.{part}" for part in ("gate", "use"))

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """With others, while nobody has the card alone."""
        with contextlib.ExitStack() as stack:
            with _locked(self.gate, fcntl.LOCK_EX):
                stack.enter_context(_locked(self.use, fcntl.LOCK_SH))
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """With nobody else."""
        with _locked(self.gate, fcntl.LOCK_EX), _locked(self.use, fcntl.LOCK_EX):
            yield


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)
