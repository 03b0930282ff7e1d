"""Which capability code is compiled for, where it is not the device's own."""

from __future__ import annotations

from gpulab import arch
from gpulab.errors import UsageError
from gpulab.runtime.toolkit import Capability


def check_target(target: Capability | None, capability: Capability) -> Capability:
    """The target to compile for: the device's capability unless a lower one is wanted.

    Raises:
        UsageError: above the device's capability, or below the lowest that the lab compiles for.
    """
    if target is None:
        return capability
    if not arch.LOWEST <= target <= capability:
        raise UsageError(
            f"code for sm_{target[0]}{target[1]} does not run on sm_{capability[0]}{capability[1]}",
            fix=f"choose a target from 7.5 to {capability[0]}.{capability[1]}",
        )
    return target
