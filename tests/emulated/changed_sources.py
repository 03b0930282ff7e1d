"""The lab with a mistake in one of its sources."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulab.errors import FaultError, KernelTimeoutError
from gpulab.runtime import sources
from gpulab.runtime.cache import Store


def changed(file: str, old: str, new: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """From here on sources are a copy where ``old``, which ``file`` has once, is ``new``.

    Returns:
        A store for what is compiled of them.
    """
    copy = shutil.copytree(sources.root(), folder / "raw_kernels")
    text = (copy / file).read_text()
    assert text.count(old) == 1
    (copy / file).write_text(text.replace(old, new))
    monkeypatch.setattr(sources, "root", lambda: copy)
    return Store(folder / "cache")


def seen(run: Callable[[], object], right: object) -> str:
    """What shows a mistake: a fault, ``timeout``, ``other bits`` than are right, or ``nothing``."""
    try:
        return "nothing" if run() == right else "other bits"
    except FaultError as error:
        return str(error.details["fault"])
    except KernelTimeoutError:
        return "timeout"
