"""What the row operations share: dims, inputs, cost, and how a kernel is judged.

A row operation works on every row of a (rows, cols) array by itself. Its module gives the formula
(``rows_formula``); everything else is here and in the other ``rows_*`` modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import storage_dtype
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Capability, VariantLike
from gpulab.numerics.verdict import Judgement
from gpulab.ops.base import Dims, Effort, RestsOn, Runner, Speed
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
            f"eps = {eps:g} is not above 0 and at most 1", fix="1e-5 and 1e-6 are usual"
        )
    return float(eps)


class RowOp(RowFormula):
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
                raise UsageError(f"{name} = {value} is outside 1 .. {most}")
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
        self, variant: VariantLike, dims: Dims, family: str | RowFamily, seed: int
    ) -> dict[str, NDArray[Any]]:
        """See ``Op``; the rows judged, large arrays repeating a few distinct ones."""
        contract = self.contract(variant)
        whole = {k: int(v) for k, v in dims.items()}
        data = RowData(self, contract, whole, seed, Cache())
        return data.spread_out(data.family(get_family(family)).stored)

    def digest_inputs(self, variant: VariantLike, dims: Dims, seed: int) -> dict[str, NDArray[Any]]:
        """See ``Op``: signs times lognormal, so that exponents spread."""
        return self.stored_inputs(variant, dims, "mixed", seed)

    def judge(
        self,
        variant: VariantLike,
        dims: Dims,
        run: Runner,
        *,
        capability: Capability,
        families: Sequence[str | RowFamily] | None = None,
        seed: int = 0,
        effort: Effort = "quick",
        atomics: bool = False,
        cache: Cache | None = None,
        rests_on: RestsOn = "both",
    ) -> Judgement:
        """Run a kernel and judge it by its declared contract.

        Runs: one for each family, one repetition of the first with the other poison, and the
        probes. ``quick`` judges the operation's families for a verdict (and those that a lesson
        names), ``full`` every family made for the format.

        Args:
            variant: the row.
            dims: rows and cols.
            run: the kernel.
            capability: where it runs; row arithmetic does not depend on it.
            families: input families; None: by effort.
            seed: of inputs and probes.
            effort: ``quick`` or ``full``.
            atomics: the kernel declares that the order of its sums may change between runs.
            cache: shared by the cases of a run; None: nothing is kept.
            rests_on: ``contract``: the verdict rests on the published ceiling alone.

        Raises:
            UsageError: bad dims, family, contract or effort.
            GpulabError: whatever the runner raises (fault, timeout, build).
        """
        self.check_dims(dims)
        if effort not in ("quick", "full"):
            raise UsageError(f"unknown effort {effort!r}", fix="use quick or full")
        contract = self.contract(variant, atomics)
        chosen = self._families(variant, families, effort)
        whole = {k: int(v) for k, v in dims.items()}
        data = RowData(self, contract, whole, seed, cache or Cache())
        return Case(contract, data, run, chosen, effort, rests_on).judge()

    def _families(
        self, variant: VariantLike, families: Sequence[str | RowFamily] | None, effort: Effort
    ) -> list[RowFamily]:
        made = families_for(variant.format)
        if families is None:
            names = [*self.quick, *getattr(variant, "caught_on", ())]
            if effort == "full":
                names += made
            names = [n for n in dict.fromkeys(names) if n in made]
            return [get_family(n) for n in names]
        if not families:
            raise UsageError("a verdict needs at least one input family")
        return [get_family(f) for f in families]
