"""The errors a user can meet, each with its exit code, and nothing else.

Exit codes (stable, part of the interface):

====  ==================================================================
0     all passed
1     a gate failed
2     usage: the request itself is wrong
3     inconclusive: the evidence does not decide
4     does not build
5     timeout (wall clock or instruction budget)
6     fault: out of bounds, misaligned, race, uninitialised read, crash
7     the wanted device is not there
130   interrupted: what was judged by then is shown, and is no verdict
====  ==================================================================
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130


class GpulabError(Exception):
    """Base of every error shown to a user as one clear line.

    Args:
        message: what went wrong, naming the thing and the limit.
        fix: what to do next, or None where nothing can be done.
        details: further JSON-able facts (file, line, thread, log, ...).
    """

    exit_code: ClassVar[int] = 2
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, fix: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.details = details

    def to_json(self) -> dict[str, Any]:
        """The object printed as ``{"schema": 1, "error": ...}`` under ``--json``."""
        return {
            "kind": self.kind,
            "message": self.message,
            "fix": self.fix,
            "exit_code": self.exit_code,
            **self.details,
        }


class UsageError(GpulabError):
    """The request is wrong: a bad size, format, option or argument."""

    exit_code = 2
    kind = "usage"


class BuildError(GpulabError):
    """The source does not compile; ``log`` holds the compiler's lines."""

    exit_code = 4
    kind = "build"


class KernelTimeoutError(GpulabError):
    """A kernel exceeded its wall clock or instruction budget."""

    exit_code = 5
    kind = "timeout"


class FaultError(GpulabError):
    """A kernel did something illegal; ``fault``, ``file``, ``line`` say what and where."""

    exit_code = 6
    kind = "fault"


class DeviceMissingError(GpulabError):
    """The wanted device, driver or library is not there."""

    exit_code = 7
    kind = "device"
