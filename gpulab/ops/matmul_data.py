"""Inputs, references, blocks, simulations and certificates of a product, each computed once.

Keys hold exactly what a value depends on, so that rows of a ladder share whatever they can: the
originals by family, the references by format, the simulation by contract.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import encode, get
from gpulab.numerics import probes, reference, simulate
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Contract
from gpulab.numerics.errors import ErrorSummary, elementwise
from gpulab.numerics.inputs import Family, get_family, rounding_share
from gpulab.numerics.probes import Probe
from gpulab.numerics.reference import Block, Reference
from gpulab.numerics.simulate import Spread

T = TypeVar("T")

_ENOUGH_SIMULATED = 256
"""Elements from which a block gives a usable rms."""


class MakesInputs(Protocol):
    """The part of an operation that draws inputs."""

    def make_inputs(
        self, dims: dict[str, int], family: str | Family, fmt: str, seed: int
    ) -> dict[str, NDArray[Any]]:
        """Original float32 inputs."""


def originals(
    op: MakesInputs, dims: dict[str, int], family: Family, fmt: str, seed: int, cache: Cache
) -> dict[str, NDArray[Any]]:
    """Float32 inputs of a family: the same for all formats that get the same values."""
    key = ("originals", tuple(dims[n] for n in "mnk"), seed, *family.originals(get(fmt)))
    return cache.get(key, lambda: op.make_inputs(dims, family, fmt, seed))


@dataclass(frozen=True)
class FamilyData:
    """Everything about one family that does not depend on the kernel.

    Args:
        share: of the elements that storage changes (the smaller of both operands).
        stored: ``a`` and ``b`` as stored.
        reference: R0, R1 and S.
        storage: errors of R1 against R0.
        largest: max |R0|.
    """

    share: float
    stored: dict[str, NDArray[Any]]
    reference: Reference
    storage: ErrorSummary
    largest: float


@dataclass(frozen=True)
class ProbeData:
    """A probe with its exact answers and its block."""

    probe: Probe
    reference: Reference
    block: Block


@dataclass(frozen=True)
class Data:
    """The values of one case, through a cache.

    Args:
        op: draws inputs.
        contract: of the kernel.
        dims: m, n, k.
        seed: of everything drawn.
        cache: shared by the cases of a run.
    """

    op: MakesInputs
    contract: Contract
    dims: dict[str, int]
    seed: int
    cache: Cache

    @property
    def mnk(self) -> tuple[int, int, int]:
        """m, n, k."""
        return self.dims["m"], self.dims["n"], self.dims["k"]

    def cached(self, what: str, *key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on the dims, the seed and ``key``."""
        return self.cache.get((what, self.mnk, self.seed, *key), make)

    @property
    def _arithmetic(self) -> tuple[Hashable, ...]:
        c = self.contract
        sums = c.instruction, c.capability, c.promotion, c.split
        return (c.format, c.accumulator, c.output, *sums)

    def family(self, family: str | Family) -> FamilyData:
        """Inputs and references of a family in the contract's format."""
        chosen, fmt = get_family(family), self.contract.format
        return self.cached("family", chosen, fmt, make=lambda: self._make_family(chosen, fmt))

    def _make_family(self, family: Family, fmt: str) -> FamilyData:
        drawn = family.originals(get(fmt))
        original = originals(self.op, self.dims, family, fmt, self.seed, self.cache)
        r0 = self.cached(
            "r0",
            *drawn,
            make=lambda: reference.originals(original["a"], original["b"], seed=self.seed),
        )
        stored = {name: encode(fmt, values) for name, values in original.items()}
        share = min(rounding_share(fmt, original[name], stored[name]) for name in stored)
        ref = reference.reference(fmt, stored["a"], stored["b"], r0, seed=self.seed)
        storage, largest = ErrorSummary(0.0, 0.0, None), 0.0
        for patch in ref.patches:
            largest = max(largest, float(np.abs(patch.r0).max()))
            if patch.r0_shift is not None:
                storage = storage.merge(elementwise(patch.r1, patch.r0))
        return FamilyData(share, stored, ref, storage, largest)

    def block(self, family: str | Family) -> Block:
        """The seeded block of a family on which mutants are computed."""
        chosen, fmt = get_family(family), self.contract.format

        def make() -> Block:
            stored = self.family(chosen).stored
            return reference.block(fmt, stored["a"], stored["b"], seed=self.seed)

        return self.cached("block", chosen, fmt, make=make)

    def spread(self, family: str | Family) -> Spread | None:
        """Moments of the simulated contract's error; None for integer arithmetic.

        A result with few elements says little about the size of its own errors: the contract is
        then simulated on a larger product of the same K and family.
        """
        if self.contract.exact:
            return None
        chosen = get_family(family)

        def make() -> Spread:
            block = self.block(chosen)
            if block.rows.size * block.cols.size < _ENOUGH_SIMULATED:
                block = self._larger(chosen)
            return simulate.spread(self.contract, block, both_ways=not chosen.same_along_k)

        return self.cached("spread", chosen, self._arithmetic, make=make)

    def _larger(self, family: Family) -> Block:
        fmt, (m, n, k) = self.contract.format, self.mnk
        side = int(np.sqrt(_ENOUGH_SIMULATED))
        dims = {"m": max(m, side), "n": max(n, side), "k": k}
        original = self.op.make_inputs(dims, family, fmt, self.seed)
        a, b = (encode(fmt, original[name]) for name in ("a", "b"))
        return reference.block(fmt, a, b, seed=self.seed)

    def probe(self, make: Callable[..., Probe | None], **how: Any) -> ProbeData | None:
        """A probe, its references and its block; None where it does not exist for the format."""
        m, n, k = self.mnk
        fmt = self.contract.format

        def build() -> ProbeData | None:
            probe = make(self.contract, m, n, k, seed=self.seed, **how)
            if probe is None:
                return None
            a, b = probe.inputs["a"], probe.inputs["b"]
            ref = reference.reference(fmt, a, b, seed=self.seed, magnitudes=not probe.finite)
            return ProbeData(probe, ref, reference.block(fmt, a, b, seed=self.seed))

        key = (make.__name__, *how.items(), fmt, self.contract.sum_bits, self.contract.split)
        return self.cached("probe", *key, make=build)

    def probes(self, effort: str) -> list[ProbeData]:
        """The probes of an effort, in the order in which they run."""
        if effort == "quick":
            wanted = [self.probe(probes.exact)]
        else:
            wanted = [
                self.probe(probes.exact, signs="signed"),
                self.probe(probes.exact, signs="positive"),
                self.probe(probes.one_hot),
                self.probe(probes.non_finite),
            ]
        return [one for one in wanted if one is not None]
