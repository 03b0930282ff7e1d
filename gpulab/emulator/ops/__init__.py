"""What instructions compute, one module a family; importing this package registers them all."""

from gpulab.emulator.ops import (  # noqa: F401
    atomic,
    control,
    convert,
    copies,
    dots,
    floating,
    integer,
    logic,
    matrices,
    mbarrier,
    memory,
    moves,
    tensor,
    warp,
    wgmma,
    wmma,
)
