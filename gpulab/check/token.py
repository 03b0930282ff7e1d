"""Replay tokens: everything that a case depends on beside the submission, in one word.

fp16-matmul:1f3a9c22:m33,n65,k47:emulated-8.9
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpulab import arch
from gpulab.errors import UsageError
from gpulab.registry import Capability

_TOKEN = re.compile(
    r"(?P<exercise>[\w-]+):(?P<seed>[0-9a-f]{8}):(?P<dims>[a-z_]+\d+(?:,[a-z_]+\d+)*)"
    r":(?P<device>cuda|emulated)-(?P<capability>\d+\.\d+)"
)


@dataclass(frozen=True)
class Token:
    """One case: exercise, seed, dims, device."""

    exercise: str
    seed: int
    dims: Mapping[str, int]
    device: str
    capability: Capability

    def __str__(self) -> str:
        dims = ",".join(f"{k}{v}" for k, v in self.dims.items())
        where = f"{self.device}-{arch.dotted(self.capability)}"
        return f"{self.exercise}:{self.seed:08x}:{dims}:{where}"


def parse(text: str) -> Token:
    """Parse a replay token.

    Raises:
        UsageError: the text is not a token, or one of its dims is out of range.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is no replay token", fix="copy it whole from the checker's output"
        )
    dims = {}
    for part in match["dims"].split(","):
        name, value = re.fullmatch(r"([a-z_]+)(\d+)", part).groups()  # type: ignore[union-attr]
        if not 0 <= int(value) <= 1 << 20:
            raise UsageError(
                f"{text!r}: {name} = {value} is outside 0 .. {1 << 20}",
                fix="copy the token whole from the checker's output",
            )
        dims[name] = int(value)
    capability = arch.parse(match["capability"])
    return Token(match["exercise"], int(match["seed"], 16), dims, match["device"], capability)
