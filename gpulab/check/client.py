"""The judge's side of a worker: start it, ask with a time limit, kill it, name what happened."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import gpulab
from gpulab.check.cards import Turn
from gpulab.check.wire import Arrays, Message, WireError, pack, unpack
from gpulab.errors import (
    BuildError,
    DeviceMissingError,
    FaultError,
    GpulabError,
    KernelTimeoutError,
    UsageError,
)

MEMORY_BYTES = 4 << 30
START_SECONDS = 60.0
_KINDS: dict[str, type[GpulabError]] = {
    e.kind: e for e in (UsageError, BuildError, KernelTimeoutError, FaultError, DeviceMissingError)
}
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_")

ROOT = Path(gpulab.__file__).resolve().parent.parent


def python_path() -> list[Path]:
    """Folders of PYTHONPATH: what the judge imports from there a worker must find too."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path.resolve() for path in map(Path, filter(None, given)) if path.is_dir()]


def command(kind: str, scratch: str) -> list[str]:
    """The interpreter's command line: isolated from the user's site, the lab importable."""
    places = [str(path) for path in dict.fromkeys([ROOT, *python_path()])]
    code = (
        f"import sys; sys.path[:0] = {places!r}; "
        f"from gpulab.check.worker import main; main({kind!r}, {scratch!r}, {os.getpid()})"
    )
    return [sys.executable, "-I", "-B", "-c", code]


def environment(scratch: str) -> dict[str, str]:
    """What a worker inherits: where libraries are, and one thread for each."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **one, "HOME": scratch, "GPULAB_CACHE_DIR": f"{scratch}/cache"}


def raise_error(error: Mapping[str, Any], folder: str) -> None:
    """Raise the error that a worker described.

    Args:
        error: as it sent it.
        folder: where it ran: compilers put it before the name of the submission.

    Raises:
        GpulabError: of the kind it names; a ``UsageError`` where it names none of ours.
    """
    error = {k: v.replace(f"{folder}/", "") if isinstance(v, str) else v for k, v in error.items()}
    facts = {k: v for k, v in error.items() if k not in ("kind", "message", "fix", "exit_code")}
    kind, fix = _KINDS.get(str(error.get("kind")), UsageError), error.get("fix")
    raise kind(str(error.get("message")), fix=None if fix is None else str(fix), **facts)


class Channel:
    """A child process and the frames to and from it.

    Args:
        argv: its command line.
        env: its environment.
        cwd: its folder.
        pass_fds: descriptors it inherits.

    Attributes:
        folder: where it sees the submission: no part of what a learner is told.
    """

    def __init__(
        self, argv: list[str], env: dict[str, str], cwd: str, pass_fds: tuple[int, ...] = ()
    ) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=cwd,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        self.folder, self.deadline = cwd, 0.0

    def ask(
        self, message: Message, arrays: Arrays | None, seconds: float, doing: str
    ) -> tuple[Message, Arrays]:
        """Send one frame and wait for the answer.

        Raises:
            KernelTimeoutError: none came in time; the process is killed.
            FaultError: the process died.
            GpulabError: the answer is an error.
        """
        assert self.process.stdin is not None
        self.deadline = time.monotonic() + seconds
        try:
            self.process.stdin.write(pack(message, arrays))
            self.process.stdin.flush()
            answer, found = unpack(self._read)
        except TimeoutError:
            self.kill()
            raise KernelTimeoutError(
                f"{doing} took longer than {seconds:.0f} s and was stopped",
                fix="look for a loop that does not end, or a barrier that some threads never reach",
            ) from None
        except (BrokenPipeError, WireError) as error:
            raise self._died(doing, error) from None
        if "error" in answer:
            raise_error(answer["error"], self.folder)
        return answer, found

    def _read(self, count: int) -> bytes:
        assert self.process.stdout is not None
        handle, parts = self.process.stdout.fileno(), []
        while count:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                raise TimeoutError
            part = os.read(handle, min(count, 1 << 20))
            if not part:
                break
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _died(self, doing: str, error: Exception) -> GpulabError:
        self.kill()
        code = self.process.returncode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with status {code} ({error})"
        return FaultError(
            f"{doing}: the process that ran the submission {how}",
            fault="crash",
            fix="it may have exceeded the memory limit, or broken the compiler",
        )

    def kill(self) -> None:
        """End the process and all it started."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Client:
    """A confined worker for one submission, in a scratch folder of its own.

    Args:
        device: ``cuda`` or ``emulated``.
        memory_bytes: its limit.

    Attributes:
        held: which confinements hold on this system.
    """

    def __init__(self, device: str, memory_bytes: int = MEMORY_BYTES) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="gpulab-check-")
        self.turn = Turn() if device == "cuda" else None
        scratch = self.folder.name
        self.channel = Channel(command("serve", scratch), environment(scratch), scratch)
        try:
            answer, _ = self.channel.ask(
                {
                    "do": "confine",
                    "device": device,
                    "memory_bytes": memory_bytes,
                    "readable": [str(path) for path in python_path()],
                },
                None,
                START_SECONDS,
                "starting the worker",
            )
        except BaseException:
            self.close()
            raise
        self.held: dict[str, bool] = answer["held"]

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the worker and remove its folder."""
        self.channel.kill()
        self.folder.cleanup()

    def ask(
        self, message: Message, arrays: Arrays | None = None, *, seconds: float, doing: str
    ) -> tuple[Message, Arrays]:
        """One command; see ``Channel.ask``. What is timed has the card alone."""
        if self.turn is None:
            return self.channel.ask(message, arrays, seconds, doing)
        with self.turn.alone() if message["do"] == "time" else self.turn.shared():
            return self.channel.ask(message, arrays, seconds, doing)

    def python_to_ptx(
        self, path: Path, message: dict[str, Any], seconds: float, *, trusted: bool
    ) -> tuple[dict[str, Any], dict[str, bool]]:
        """Compile a Python submission in a confined process; see ``sandbox.python_to_ptx``."""
        from gpulab.check import sandbox

        return sandbox.python_to_ptx(path, message, seconds, trusted=trusted)
