"""What ``gpulab check`` refuses before it judges anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpulab.cli.options import check_output, check_seed
from gpulab.errors import UsageError


def check_limits(seconds: float, memory_gb: float, jobs: int | None, seed: int | None) -> None:
    """Refuse numbers outside what each option takes.

    Raises:
        UsageError: names the option and the limit.
    """
    if not 0 < seconds <= 3600 or not math.isfinite(seconds):
        raise UsageError(
            f"--timeout {seconds}: more than 0, at most 3600 seconds",
            fix="for example --timeout 60",
        )
    if not 0.5 <= memory_gb <= 1024:
        raise UsageError(f"--memory {memory_gb}: 0.5 to 1024 GB", fix="for example --memory 8")
    if jobs is not None and not 1 <= jobs <= 256:
        raise UsageError(f"--jobs {jobs}: 1 .. 256", fix="leave it out for one a processor")
    if seed is not None:
        check_seed(seed)


def check_outputs(outputs: Mapping[str, Path | None], found: Sequence[Path]) -> None:
    """Refuse files that cannot be written, or that would be written over what is needed.

    Args:
        outputs: file of each option.
        found: the submissions.

    Raises:
        UsageError: names the option and the file.
    """
    taken = {path.resolve(): "a submission" for path in found}
    for option, output in outputs.items():
        check_output(option, output)
        if output is None:
            continue
        place = output.resolve()
        if place in taken:
            raise UsageError(
                f"{option}: {output} is {taken[place]}", fix="name a file of its own: it is written"
            )
        taken[place] = f"the file of {option} too"
