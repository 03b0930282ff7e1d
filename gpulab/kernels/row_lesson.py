"""Declares row kernels that are wrong on purpose, a warp a row, one mistake each, and their twins.

Each lesson is judged by the contract of its operation, which it must fail on the families it names.
Where a mistake cannot show at the dims asked for, the lesson says so instead of passing. Its twin
is the same kernel without the mistake: the cost of doing it right is the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpulab.formats import get
from gpulab.kernels import row_shape
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    Param,
    RawBuild,
    Variant,
    register,
)

LESSON_ORDER = 100


@dataclass(frozen=True)
class Lesson:
    """One mistake.

    Args:
        name: of the kernel, of its file (after the operation) and of its entry.
        idea: the mistake in one phrase.
        note: why it is wrong, in one sentence.
        caught_on: families that must show it.
        formats: storage formats.
        narrow_sum: its running sum is kept in the storage format.
        contract: the rounding contract it is judged by.
        output: format of the result; None: that of x.
        shown_by: reasons beside the arithmetic ones by which it may fail.
        hidden: why it cannot show at some dims, or None.
        twin: the kernel that is the same without the mistake.
    """

    name: str
    idea: str
    note: str
    caught_on: tuple[str, ...]
    formats: tuple[str, ...] = ("fp32", "fp16", "bf16")
    narrow_sum: bool = False
    contract: str = ""
    output: str | None = None
    shown_by: tuple[str, ...] = ()
    hidden: Callable[[Dims], str | None] = lambda dims: None
    twin: str = "plain"


FEW = 256
"""Elements below which a mistake of rounding may stay invisible by chance."""


def enough(dims: Dims) -> str | None:
    """Mistakes of rounding need sums, and elements to show in."""
    if dims["cols"] > 1 and dims["rows"] * dims["cols"] >= FEW:
        return None
    return f"shows in {FEW} elements or more"


def enough_rows(dims: Dims) -> str | None:
    """Mistakes in one element a row need rows, and columns to choose from."""
    return (
        None if dims["cols"] >= 8 and dims["rows"] >= 8 else "shows in 8 rows and columns or more"
    )


def several_a_lane(dims: Dims) -> str | None:
    """Mistakes between a lane's elements need several of them."""
    if dims["cols"] > row_shape.WARP:
        return None
    return f"needs more than {row_shape.WARP} columns: a lane has one"


def beyond_32_bits(dims: Dims) -> str | None:
    """Offsets wrap from there on."""
    if dims["rows"] * dims["cols"] > 1 << 32:
        return None
    return "shows beyond 2^32 elements only"


def declare(
    op: str, order: int, lesson: Lesson, params: Callable[[Variant], tuple[Param, ...]]
) -> KernelSpec:
    """Register a lesson."""
    rows = tuple(
        Variant(
            fmt,
            fmt if lesson.narrow_sum else "fp32",
            lesson.output or fmt,
            contract=lesson.contract,
            lesson=True,
            caught_on=lesson.caught_on,
            shown_by=lesson.shown_by,
            note=lesson.note,
        )
        for fmt in lesson.formats
    )

    def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
        return row_shape.too_wide(dims) or lesson.hidden(dims)

    return register(
        KernelSpec(
            op=op,
            name=lesson.name,
            backend="raw",
            idea=lesson.idea,
            order=LESSON_ORDER + order,
            variants=rows,
            params=params,
            build=partial(_build, f"lessons/{op}_{lesson.name}.cu", f"{op}_{lesson.name}"),
            plan=_plan,
            supports=supports,
            twin=lesson.twin,
        )
    )


def declare_twin(
    op: str,
    name: str,
    idea: str,
    rows: tuple[Variant, ...],
    params: Callable[[Variant], tuple[Param, ...]],
) -> KernelSpec:
    """Register what a lesson is without its mistake, from ``OP/plain.cu``: a study, no row."""
    return register(
        KernelSpec(
            op=op,
            name=name,
            backend="raw",
            idea=idea,
            order=LESSON_ORDER - 1,
            variants=rows,
            params=params,
            build=partial(_build, f"{op}/plain.cu", f"{op}_{name}"),
            plan=_plan,
            supports=lambda variant, capability, dims: row_shape.too_wide(dims),
            study=True,
        )
    )


def _build(
    source: str, entry: str, variant: Variant, capability: Capability, dims: Dims
) -> RawBuild:
    return RawBuild(source, f"{entry}<{get(variant.format).cpp}>")


def _plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    return LaunchPlan(grid=(dims["rows"], 1, 1), block=(row_shape.WARP, 1, 1))
