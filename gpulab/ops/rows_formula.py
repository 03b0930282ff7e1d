"""What a row operation says about itself: inputs, formula, declared roundings, error bound.

The formula is written over an ``Arithmetic``; references, simulations and mutants follow from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import encode, get
from gpulab.numerics.contract import VariantLike
from gpulab.numerics.rounding import through
from gpulab.ops.base import Dims, Effort
from gpulab.ops.rows_arith import EXACT, Arithmetic
from gpulab.ops.rows_contract import Answer, Finish, Floats, RowContract, Sums, Values
from gpulab.ops.rows_families import RowFamily, draw, get_family, parameter

if TYPE_CHECKING:
    from gpulab.ops.rows_mutants import RowMutant
    from gpulab.ops.rows_probes import RowProbe

EVERYTHING = slice(None)


@dataclass(frozen=True)
class Input:
    """An input array.

    Args:
        name: parameter name.
        kind: ``rows`` (rows, cols), ``parameter`` (cols,), ``labels`` (rows,).
        format: storage format.
    """

    name: str
    kind: Literal["rows", "parameter", "labels"]
    format: str


class RowFormula(ABC):
    """A row operation.

    Attributes:
        name: as in the registry.
        dims: rows and cols.
        outputs: parameter names, the one whose errors are shown first.
        table: entry of the published tolerances it takes.
        quick: families a verdict rests on unless told otherwise.
        default_contract: what a row that names no contract is judged by.
        contracts: names of all contracts.
    """

    name: ClassVar[str]
    dims: ClassVar[tuple[str, ...]] = ("rows", "cols")
    table: ClassVar[str]
    quick: ClassVar[tuple[str, ...]]
    default_contract: ClassVar[str] = ""
    contracts: ClassVar[tuple[str, ...]] = ("",)

    @abstractmethod
    def inputs(self, contract: RowContract) -> tuple[Input, ...]:
        """Its input arrays, in the order of the kernels' parameters."""

    @abstractmethod
    def outputs(self, contract: RowContract) -> tuple[str, ...]:
        """Its output arrays; errors of the first are shown."""

    @abstractmethod
    def compute(
        self,
        arithmetic: Arithmetic,
        contract: RowContract,
        values: Values,
        over: slice = EVERYTHING,
    ) -> dict[str, Floats]:
        """Every output before its last declared roundings.

        Args:
            arithmetic: how each step is rounded.
            contract: declared roundings.
            values: inputs.
            over: the columns that reductions see.
        """

    @abstractmethod
    def finish(self, name: str, contract: RowContract, values: Values) -> Finish:
        """The last declared roundings of an output."""

    @abstractmethod
    def bounds(self, contract: RowContract, values: Values, sums: Sums) -> dict[str, Floats]:
        """D of every output; ``sums`` says what the terms of its sums are like."""

    def ideal(self, contract: RowContract, values: Values, original: bool) -> dict[str, Floats]:
        """The exact outputs; ``original``: no declared rounding at all (R0)."""
        return self.compute(EXACT, contract, values)

    @abstractmethod
    def scales(self, contract: RowContract, values: Values) -> dict[str, Floats]:
        """The unit of each output's errors, element by element; positive."""

    @abstractmethod
    def probes(self, contract: RowContract, dims: Dims, effort: Effort) -> Sequence[RowProbe]:
        """Inputs on which no order of sums rounds, and non-finite ones."""

    @abstractmethod
    def mutants(self, contract: RowContract) -> Sequence[RowMutant]:
        """Mistakes of this operation beside the general ones."""

    @abstractmethod
    def explain(self, contract: RowContract, cols: int) -> str:
        """The arithmetic of D in one line."""

    @abstractmethod
    def flops(self, dims: Dims) -> int:
        """Floating-point operations, an exponential counted as one."""

    def scalars(self, variant: VariantLike, dims: Dims) -> Mapping[str, float]:
        """Values of the kernels' scalar parameters."""
        return {}

    def contract(self, variant: VariantLike, atomics: bool = False) -> RowContract:
        """The contract of a variant.

        Raises:
            UsageError: one that the operation does not have.
        """
        made = RowContract.of(self.name, variant, self.default_contract, atomics)
        if made.name not in self.contracts:
            raise UsageError(
                f"{self.name} has no contract {made.name!r}",
                fix=f"choose one of: {', '.join(c for c in self.contracts if c)}",
            )
        return made

    def output_format(self, name: str, contract: RowContract) -> str:
        """Storage format of an output."""
        return contract.output

    def answers(
        self, contract: RowContract, values: Values, sums: Sums = "random"
    ) -> tuple[Answer, ...]:
        """What every output must be on these inputs."""
        with np.errstate(all="ignore"):
            centre = self.compute(EXACT, contract, values)
            r1 = self.ideal(contract, values, original=False)
            d, scale = self.bounds(contract, values, sums), self.scales(contract, values)
        return tuple(
            Answer(
                name,
                r1[name],
                centre[name],
                d[name],
                scale[name],
                self.finish(name, contract, values),
                get(self.output_format(name, contract)),
            )
            for name in self.outputs(contract)
        )

    def stored_values(
        self, arithmetic: Arithmetic, contract: RowContract, values: Values
    ) -> dict[str, Floats]:
        """Outputs as a kernel of that arithmetic stores them."""
        with np.errstate(all="ignore"):
            return self.finished(contract, values, self.compute(arithmetic, contract, values))

    def finished(
        self, contract: RowContract, values: Values, found: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """Outputs after their last declared roundings."""
        with np.errstate(all="ignore"):
            return {n: self.finish(n, contract, values)(v, ...) for n, v in found.items()}

    def wide(self, name: str) -> bool:
        """Whether an output is (rows, cols); else (rows,)."""
        return True

    def make_inputs(
        self, dims: Dims, family: str | RowFamily, fmt: str, seed: int
    ) -> dict[str, NDArray[Any]]:
        """Original float32 inputs (labels int32) of every parameter any contract knows."""
        chosen = get_family(family)
        rows, cols = int(dims["rows"]), int(dims["cols"])
        found: dict[str, NDArray[Any]] = {}
        for name in self.contracts:
            for i in self.inputs(RowContract(self.name, fmt, fmt, name)):
                if i.name not in found:
                    found[i.name] = self._draw(i, chosen, rows, cols, fmt, seed)
        return found

    def _draw(
        self, one: Input, family: RowFamily, rows: int, cols: int, fmt: str, seed: int
    ) -> NDArray[Any]:
        if one.kind == "rows":
            return draw(family, int(one.name != "x"), (rows, cols), fmt, seed)
        if one.kind == "parameter":
            return parameter(one.name, cols, seed)
        return self.labels(rows, cols, seed)

    def labels(self, rows: int, cols: int, seed: int) -> NDArray[np.int32]:
        """Labels of the rows, where the operation has them."""
        raise NotImplementedError(f"{self.name} has no labels")


def rounding(fmt: str) -> Finish:
    """One rounding to a format."""
    row = get(fmt)

    def finish(values: Floats, at: Any) -> Floats:
        return through(row, values)

    return finish


def store(fmt: str, values: NDArray[Any]) -> NDArray[Any]:
    """Inputs as stored; int32 as it is."""
    if fmt == "int32":
        return values.astype(np.int32)
    return encode(fmt, values)
