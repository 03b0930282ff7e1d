"""wgmma kernels compiled for sm_90a, and what keeps one from running or slows it down."""

from __future__ import annotations

from typing import Protocol

from gpulab import arch
from gpulab.registry import RawBuild
from gpulab.runtime import nvrtc, resources

HOPPER = arch.get((9, 0))
SERIALISED = ("C7508", "C7509", "C7510", "C7511")


class Block(Protocol):
    """A tile, as far as it decides what a block needs."""

    @property
    def threads(self) -> int:
        """Threads a block."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block."""


def compiled(build: RawBuild) -> tuple[nvrtc.Compiled, resources.Resources]:
    """Compiled for sm_90a, and what the compiler said of it."""
    made = nvrtc.compile_cubin(build.source, build.entry, (9, 0), feature_target=True)
    return made, resources.parse(made.log, made.lowered, made.ptx)


def findings(used: resources.Resources, t: Block) -> list[str]:
    """What keeps a tile from running at all, or at its speed."""
    found = [w for w in used.warnings if any(code in w for code in SERIALISED)]
    found += [f"warning: {w}" for w in used.warnings]
    if used.spill_bytes or used.stack_bytes:
        found.append(f"{used.spill_bytes} bytes spilled, {used.stack_bytes} of stack")
    if used.registers * t.threads > HOPPER.registers_per_sm:
        found.append(f"{used.registers} registers x {t.threads}")
    if used.shared_bytes + t.shared_bytes > HOPPER.shared_per_block_bytes:
        found.append(f"{used.shared_bytes + t.shared_bytes} bytes of shared memory")
    if used.max_threads_per_block != t.threads:
        found.append(f"compiled for {used.max_threads_per_block} threads")
    return found
