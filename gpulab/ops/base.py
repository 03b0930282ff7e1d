"""What an operation is: dims, inputs, float64 reference, cost, and the judge of a kernel.

An operation knows nothing of devices. A kernel reaches it as a ``Runner``: a function from stored
inputs to stored outputs. Whoever runs kernels keeps one ``Cache`` for a whole run and passes it to
every ``judge``: references, inputs and simulations are then computed once for all kernels that
share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from numpy.typing import NDArray

from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Capability, VariantLike
from gpulab.numerics.repeat import repeated
from gpulab.numerics.verdict import Judgement

Dims = Mapping[str, int]
Effort = Literal["quick", "full"]
RestsOn = Literal["both", "contract"]
Speed = Literal["tflops", "gb_per_s"]


@dataclass(frozen=True)
class RunResult:
    """What one launch left behind.

    Args:
        outputs: stored arrays by parameter name.
        inputs_unchanged: every input came back bit for bit.
        stands_for: rows of the outputs of which only the first came back, by name: the others were
            seen to repeat them, bit for bit (``numerics.repeat``).
    """

    outputs: dict[str, NDArray[Any]]
    inputs_unchanged: bool
    stands_for: dict[str, int] = field(default_factory=dict)

    def whole(self) -> dict[str, NDArray[Any]]:
        """Every output with all of its rows."""
        return {
            name: repeated(array, self.stands_for.get(name, len(array)))
            for name, array in self.outputs.items()
        }


class Runner(Protocol):
    """Runs a kernel once on fresh memory whose outputs are filled with a byte first.

    An input may have fewer rows than its parameter: they repeat (``numerics.repeat``).
    """

    def __call__(self, inputs: Mapping[str, NDArray[Any]], *, poison: int) -> RunResult:
        """Stored inputs by parameter name -> outputs."""


class Op(Protocol):
    """An operation of the lab.

    Attributes:
        name: as in the registry.
        dims: names of its dims.
        speed: the field of a record that tells its speed: what it is bound by is arithmetic, or
            memory.
    """

    name: ClassVar[str]
    dims: ClassVar[tuple[str, ...]]
    speed: ClassVar[Speed]

    def check_dims(self, dims: Dims) -> None:
        """Refuse missing, unknown or impossible dims.

        Raises:
            UsageError: names the dim and its limits.
        """

    def terms(self, dims: Dims) -> int:
        """Terms summed for one output element: the K of the gates."""

    def scalars(self, variant: VariantLike, dims: Dims) -> Mapping[str, float]:
        """Values of the kernels' ``scalar`` parameters by name (``eps``, ``ignore_index``)."""

    def flops(self, dims: Dims) -> int:
        """Floating-point operations."""

    def bytes_moved(self, variant: VariantLike, dims: Dims) -> int:
        """Least traffic in bytes: every input read once, every output written once."""

    def host_bytes(self, dims: Dims) -> int:
        """Memory a judge needs on the host, about."""

    def make_inputs(self, dims: Dims, family: Any, fmt: str, seed: int) -> dict[str, NDArray[Any]]:
        """Original float32 inputs by parameter name."""

    def stored_inputs(
        self,
        variant: VariantLike,
        dims: Dims,
        family: Any,
        seed: int,
        cache: Cache | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Inputs of a family as the variant's kernels take them, by parameter name; from the
        cache of the judge where they are there."""

    def digest_inputs(self, variant: VariantLike, dims: Dims, seed: int) -> dict[str, NDArray[Any]]:
        """Stored inputs whose exponents spread, so that alignment and rounding matter."""

    def judge(
        self,
        variant: VariantLike,
        dims: Dims,
        run: Runner,
        *,
        capability: Capability,
        families: Sequence[Any] | None = None,
        seed: int = 0,
        effort: Effort = "quick",
        atomics: bool = False,
        cache: Cache | None = None,
        rests_on: RestsOn = "both",
    ) -> Judgement:
        """Run a kernel on families and probes and judge it."""
