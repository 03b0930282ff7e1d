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
            f"code for {arch.sm(target)} does not run on {arch.sm(capability)}",
            fix=f"choose a target from {arch.dotted(arch.LOWEST)} to {arch.dotted(capability)}",
        )
    return target
