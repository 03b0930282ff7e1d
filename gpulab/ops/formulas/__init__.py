"""The formula of every operation, line by line, with the format of each result.

One module an operation, of its name, with ``lines(variant, capability)`` and the sizes at which its
kernels are looked at (``Sizes``). A line's text is Python
over the names of the inputs, of earlier lines and of ``FUNCTIONS``: what is printed for people is
what the tests evaluate and compare with the judge's own reference, so it cannot say another thing.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpulab.errors import UsageError
from gpulab.formats import get
from gpulab.numerics.contract import Capability, VariantLike
from gpulab.numerics.rounding import through

_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Line:
    """``name = text``.

    Args:
        name: of the result; an output's parameter name where it is stored.
        text: the expression.
        format: of the result.
        kind: ``step`` (rounded to the format once), ``exact``, ``sum`` (rounded at every term),
            ``cast`` (rounded to a storage format).
        note: how it is done, where the expression does not say.
    """

    name: str
    text: str
    format: str = "fp32"
    kind: str = "step"
    note: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names its expression uses."""
        return frozenset(_NAME.findall(self.text))


def of(op: str, variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """The lines of an operation for a row, as its contract declares them.

    Raises:
        UsageError: the operation has no module here.
    """
    return cast("tuple[Line, ...]", _module(op).lines(variant, capability))


def _module(op: str) -> Any:
    name = f"{__name__}.{op}"
    if importlib.util.find_spec(name) is None:
        raise UsageError(
            f"{op} has no formula", fix=f"write gpulab/ops/formulas/{op}.py (docs/explain.md)"
        )
    return importlib.import_module(name)


@dataclass(frozen=True)
class Sizes:
    """Dims of an operation.

    Args:
        small: for counting work on the emulated device.
        grown: the same with those doubled that decide how work grows.
        timed: for a card.
    """

    small: dict[str, int]
    grown: dict[str, int]
    timed: dict[str, int]


def sizes(op: str) -> Sizes:
    """The sizes at which kernels of an operation are looked at."""
    module = _module(op)
    grown = {d: n * 2 if d in module.GROWING else n for d, n in module.SMALL.items()}
    return Sizes(dict(module.SMALL), grown, dict(module.TIMED))


def reused_casts(lines: Sequence[Line]) -> tuple[int, tuple[str, ...]]:
    """Casts to less than float32 whose results are computed with again.

    Returns:
        The most that follow one another on the way of a number, and the formats.
    """
    depth: dict[str, int] = {}
    formats = set()
    for at, line in enumerate(lines):
        before = max((depth.get(name, 0) for name in line.names), default=0)
        again = any(line.name in later.names for later in lines[at + 1 :])
        counts = line.kind == "cast" and narrow(line.format) and again
        if counts:
            formats.add(line.format)
        depth[line.name] = before + counts
    return max(depth.values(), default=0), tuple(sorted(formats))


def narrow(fmt: str) -> bool:
    """Whether a storage format has fewer bits than float32, so that storing rounds."""
    return fmt != "int32" and get(fmt).bits < get("fp32").bits


def _cast(values: Any, fmt: str) -> Any:
    return values if fmt == "int32" else through(get(fmt), values)


def _total(values: Any) -> Any:
    return values.sum(axis=-1, keepdims=True)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "max": lambda x: x.max(axis=-1, keepdims=True),
    "sum": _total,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "cast": _cast,
    "first": lambda x: x[..., :1],
    "at": lambda x, labels: np.take_along_axis(x, labels, axis=-1),
    "where": np.where,
    "dot": lambda a, b: a @ b,
    "transposed": lambda x: x.swapaxes(-1, -2),
}
"""What expressions may call: reductions run along the last axis, which stays with length 1."""


def evaluate(lines: Sequence[Line], values: Mapping[str, Any]) -> dict[str, Any]:
    """Every line's value in float64, casts included.

    Args:
        lines: of one operation.
        values: inputs and constants (``n``, ``eps``) by name, as float64.
    """
    known: dict[str, Any] = dict(values)
    with np.errstate(all="ignore"):
        for line in lines:
            known[line.name] = eval(line.text, {"__builtins__": {}, **FUNCTIONS}, known)
    return known
