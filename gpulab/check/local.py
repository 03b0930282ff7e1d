"""A worker in the judge's own process: for files that are trusted, such as the lab's fixtures.

The stages and the verdict are the same; nothing is confined, and only the emulated device's budget
stops a kernel that does not end.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from gpulab.check.client import Client, raise_error
from gpulab.check.wire import Arrays, Message
from gpulab.check.worker import Worker, python_to_ptx


class LocalClient(Client):
    """Answers without a process of its own; see ``Client``."""

    def __init__(self, device: str, memory_bytes: int = 0) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="gpulab-check-")
        self.worker = Worker(Path(self.folder.name))
        self.held = {"process": False}

    def close(self) -> None:
        """Remove the folder."""
        self.folder.cleanup()

    def ask(
        self, message: Message, arrays: Arrays | None = None, *, seconds: float, doing: str
    ) -> tuple[Message, Arrays]:
        """One command."""
        answer, found = self.worker.answer(message, arrays or {})
        if "error" in answer:
            raise_error(answer["error"], os.getcwd())
        return answer, found

    def python_to_ptx(
        self, path: Path, message: dict[str, Any], seconds: float, *, trusted: bool
    ) -> tuple[dict[str, Any], dict[str, bool]]:
        """Import the file here and compile its kernel."""
        return python_to_ptx({**message, "path": str(path)}), dict(self.held)
