"""What the row operations share: dims, inputs, cost, and how a kernel is judged.

A row operation works on every row of a (rows, cols) array by itself. Its module gives the formula
(``rows_formula``); everything else is here and in the other ``rows_*`` modules.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import storage_dtype
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import VariantLike
from gpulab.ops.base import Dims, Speed
from gpulab.ops.judging import Asked, JudgedOp
from gpulab.ops.rows_data import RowData, distinct_rows
from gpulab.ops.rows_families import RowFamily, families_for, get_family
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_judge import Case

MAX_ELEMENTS = 1 << 40
"""Elements of one array beyond which a size is refused as a slip of the keyboard."""
MAX_COLS = 1 << 28
"""Columns beyond which one row needs more float64 than a host has to spare."""


def checked_eps(eps: float) -> float:
    """What is added to a mean square or a variance: above 0 in float32, and at most 1.

    Raises:
        UsageError: anything else.
    """
    if not (np.float32(eps) > 0 and eps <= 1):  # NaN is neither
        raise UsageError(
            f"eps = {eps:g} is not above 0 in float32 and at most 1",
            fix="1e-5 and 1e-6 are usual",
        )
    return float(eps)


class RowOp(RowFormula, JudgedOp):
    """A row operation, as the lab knows operations (``Op``)."""

    speed: ClassVar[Speed] = "gb_per_s"

    def check_dims(self, dims: Dims) -> None:
        """See ``Op``."""
        if set(dims) != set(self.dims):
            raise UsageError(
                f"{self.name} has the dims rows, cols, got {', '.join(dims) or 'none'}"
            )
        for name, most in (("rows", (1 << 31) - 1), ("cols", MAX_COLS)):
            value = dims[name]
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise UsageError(f"{name} = {value!r} must be a whole number")
            if not 1 <= value <= most:
                raise UsageError(
                    f"{name} = {value} is outside 1 .. {most}", fix=f"for example {name} = 256"
                )
        if int(dims["rows"]) * int(dims["cols"]) > MAX_ELEMENTS:
            raise UsageError(
                f"rows={dims['rows']} cols={dims['cols']}: more than 2^40 elements",
                fix="choose a smaller size",
            )

    def terms(self, dims: Dims) -> int:
        """Columns."""
        return int(dims["cols"])

    def bytes_moved(self, variant: VariantLike, dims: Dims) -> int:
        """Every input read once, every output written once."""
        contract = self.contract(variant)
        rows, cols = int(dims["rows"]), int(dims["cols"])
        sizes = {"rows": rows * cols, "parameter": cols, "labels": rows}
        total = sum(sizes[i.kind] * storage_dtype(i.format).itemsize for i in self.inputs(contract))
        for name in self.outputs(contract):
            count = rows * cols if self.wide(name) else rows
            total += count * storage_dtype(self.output_format(name, contract)).itemsize
        return total

    def host_bytes(self, dims: Dims) -> int:
        """Stored inputs and results twice, and a few float64 arrays of the distinct rows."""
        rows, cols = int(dims["rows"]), int(dims["cols"])
        return 16 * rows * cols + 160 * distinct_rows(rows, cols) * cols

    def stored_inputs(
        self,
        variant: VariantLike,
        dims: Dims,
        family: str | RowFamily,
        seed: int,
        cache: Cache | None = None,
    ) -> dict[str, NDArray[Any]]:
        """See ``Op``; of a large array the distinct rows, which the others repeat."""
        contract = self.contract(variant)
        whole = {k: int(v) for k, v in dims.items()}
        data = RowData(self, contract, whole, seed, cache or Cache())
        return data.store(data.original(get_family(family)))

    def digest_inputs(self, variant: VariantLike, dims: Dims, seed: int) -> dict[str, NDArray[Any]]:
        """See ``Op``: signs times lognormal, so that exponents spread."""
        return self.stored_inputs(variant, dims, "mixed", seed)

    def case(self, asked: Asked) -> Case:
        """See ``JudgedOp``; row arithmetic does not depend on the capability."""
        contract = self.contract(asked.variant, asked.atomics)
        data = RowData(self, contract, asked.dims, asked.seed, asked.cache)
        return Case(asked, data, self._families(asked))

    def _families(self, asked: Asked) -> list[RowFamily]:
        if asked.families is not None:
            return [get_family(f) for f in asked.families]
        made = families_for(asked.variant.format)
        names = [*self.quick, *asked.variant.caught_on]
        if asked.effort == "full":
            names += made
        return [get_family(n) for n in dict.fromkeys(names) if n in made]
