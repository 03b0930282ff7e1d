"""What instructions compute, one module a family; importing this package registers them all."""

from gpulab.emulator.ops import (  # noqa: F401
    control,
    floating,
    integer,
    logic,
    memory,
    moves,
)
