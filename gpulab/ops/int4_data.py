"""Inputs, references, blocks and probes of a product with int4 weights, each computed once.

The originals are float32 activations; the weights are given as they are stored, so that their
quantisation is no error of the kernel or of its formats: R0 - R1 is what storing A costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode, encode
from gpulab.numerics import reference, simulate
from gpulab.numerics.errors import ErrorSummary, elementwise
from gpulab.numerics.inputs import Family, draw, get_family, rounding_share
from gpulab.numerics.probes import Probe
from gpulab.numerics.reference import Block, Reference
from gpulab.numerics.simulate import Spread
from gpulab.ops import int4_weights as int4
from gpulab.ops.int4_contract import ACTIVATIONS
from gpulab.ops.matmul_data import Data, FamilyData, ProbeData

T = TypeVar("T")
Floats = NDArray[np.float64]
Stored = dict[str, NDArray[Any]]

_ENOUGH = 16
"""Rows and columns from which a block gives a usable rms."""


@dataclass(frozen=True)
class Int4Block(Block):
    """A block with the parts of its weights; ``b`` is their product.

    Args:
        integers: q (k, c).
        scales: s (groups, c).
        group: rows that share a scale.
    """

    integers: Floats
    scales: Floats
    group: int

    def weights(self, integers: Floats | None = None, scales: Floats | None = None) -> Floats:
        """The weights with other integers or scales."""
        q, s = (
            (self.integers if integers is None else integers),
            (self.scales if scales is None else scales),
        )
        return q * int4.per_row(s, self.k, self.group)


@dataclass(frozen=True)
class Int4Data(Data):
    """The values of one case, through a cache; dims are m, n, k, group."""

    def cached(self, what: str, *key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on the dims, the seed and ``key``."""
        return self.cache.get(("int4", what, self.mnk, self.dims["group"], self.seed, *key), make)

    def stored(self, family: Family, dims: dict[str, int]) -> tuple[Stored, NDArray[np.float32]]:
        """Stored inputs of a family, and the original A."""
        m, n, k = dims["m"], dims["n"], dims["k"]
        a = draw(family, 0, (m, k), ACTIVATIONS, self.seed)
        weights = draw(family, 1, (k, n), ACTIVATIONS, self.seed)
        return {"a": encode(ACTIVATIONS, a), **int4.quantise(weights, dims["group"])}, a

    def _wide(self, stored: Stored) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A and W as float32, which holds both exactly."""
        a = decode(ACTIVATIONS, stored["a"])
        w = int4.weights(stored, a.shape[1], self.dims["group"])
        return a.astype(np.float32), w.astype(np.float32)

    def _make_family(self, family: Family, fmt: str) -> FamilyData:
        stored, original = self.stored(family, self.dims)
        a, w = self._wide(stored)
        exact = reference.originals(original, w, seed=self.seed)
        ref = reference.reference("fp32", a, w, seed=self.seed)
        patches = tuple(
            replace(patch, r0_shift=(r0 - patch.r1).astype(np.float32))
            for patch, r0 in zip(ref.patches, exact, strict=True)
        )
        storage, largest = ErrorSummary(0.0, 0.0, None), 0.0
        for patch in patches:
            storage = storage.merge(elementwise(patch.r1, patch.r0))
            largest = max(largest, float(np.abs(patch.r0).max()))
        share = rounding_share(ACTIVATIONS, original, stored["a"])
        return FamilyData(share, stored, replace(ref, patches=patches), storage, largest)

    def _block_of(self, stored: Stored) -> Int4Block:
        one = reference.block("fp32", *self._wide(stored), seed=self.seed)
        q = int4.integers(stored["w"], one.k)[:, one.cols]
        scales = decode(ACTIVATIONS, stored["scales"])[:, one.cols]
        kept = {f: getattr(one, f) for f in Block.__dataclass_fields__}
        return Int4Block(**kept, integers=q, scales=scales, group=self.dims["group"])

    def block(self, family: str | Family) -> Block:
        """The seeded block of a family on which mutants are computed."""
        chosen = get_family(family)
        return self.cached("block", chosen, make=lambda: self._block_of(self.family(chosen).stored))

    def spread(self, family: str | Family) -> Spread | None:
        """Moments of the simulated contract's error.

        On CUDA cores weight by weight, the looser of the two declared ways. A tensor core takes
        its operands in half: there the weights are rounded first, on both sides of the comparison.
        """
        chosen = get_family(family)

        def make() -> Spread:
            at_least = {n: max(self.dims[n], _ENOUGH) for n in ("m", "n")}
            stored, _ = self.stored(chosen, {**self.dims, **at_least})
            a, w = self._wide(stored)
            if self.contract.model is None:
                block = reference.block("fp32", a, w, seed=self.seed)
            else:
                codes = encode(ACTIVATIONS, w, saturate=True)
                block = reference.block(ACTIVATIONS, stored["a"], codes, seed=self.seed)
            return simulate.spread(self.contract, block, both_ways=not chosen.same_along_k)

        return self.cached("spread", chosen, self._arithmetic, make=make)

    def probes(self, effort: str) -> list[ProbeData]:
        """The probes of an effort, in the order in which they run."""
        wanted = ("exact",) if effort == "quick" else ALL_PROBES
        return [self.named_probe(name) for name in wanted]

    def named_probe(self, name: str) -> ProbeData:
        """A probe by its name, with its references and its block."""

        def make() -> ProbeData:
            about, stored = _PROBES[name](self)
            probe = Probe(name, about, stored, finite=name != "non_finite")
            a, w = self._wide(stored)
            ref: Reference = reference.reference(
                "fp32", a, w, seed=self.seed, magnitudes=not probe.finite
            )
            return ProbeData(probe, ref, self._block_of(stored))

        return self.cached("probe", name, self.contract.sum_bits, make=make)

    def generator(self, stream: int) -> np.random.Generator:
        """The generator of a probe."""
        seeds = [self.seed, self.dims["k"], stream]
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


_TOP = (1 << int4.BITS - 1) - 1
_SCALES = (0.5, 1.0)
"""Scales of the exact probes: neighbouring groups differ."""


def _exact(data: Int4Data, signs: str) -> tuple[str, Stored]:
    """Odd integers whose sums, times any of the scales, are exact in every order."""
    (m, n, k), rng = data.mnk, data.generator(1)
    groups = -(-k // data.dims["group"])
    bits, most = 11, 1 << data.contract.sum_bits
    while bits > 1 and k * ((1 << bits) - 1) * _TOP / _SCALES[0] > most:
        bits -= 1
    a = (rng.integers(1 << bits - 1, 1 << bits, (m, k)) | 1).astype(np.float64)
    q = (rng.integers(0, _TOP // 2 + 1, (k, n)) * 2 + 1).astype(np.float64)
    if signs == "signed":
        a *= rng.choice([-1.0, 1.0], (m, k))
    if signs != "positive":
        flip = rng.choice([-1.0, 1.0], (k, n))
        if signs == "mixed":
            flip[:, (data.seed + 1) % 2 :: 2] = 1.0
        q *= flip
    pick = (np.arange(groups)[:, None] + rng.integers(0, 2, n)) % 2
    scales = encode(ACTIVATIONS, np.array(_SCALES)[pick])
    about = (
        f"odd integers of {bits} bits times odd weights: sums exact up to 2^{int(np.log2(most))}"
    )
    return about, {"a": encode(ACTIVATIONS, a * 2.0**-bits), **int4.store(q, scales)}


def _codes(data: Int4Data) -> tuple[str, Stored]:
    """Every row of A picks one row of W: the weight itself must come back, bit for bit."""
    (m, n, k), rng = data.mnk, data.generator(2)
    a = np.zeros((m, k))
    a[np.arange(m), np.resize(rng.permutation(k), m)] = 1.0
    q = rng.integers(-_TOP - 1, _TOP + 1, (k, n)).astype(np.float64)
    scales = encode(ACTIVATIONS, rng.uniform(0.01, 1.0, (-(-k // data.dims["group"]), n)))
    about = f"every row of A picks one of {k} rows of weights, all codes among them"
    return about, {"a": encode(ACTIVATIONS, a), **int4.store(q, scales)}


def _non_finite(data: Int4Data) -> tuple[str, Stored]:
    (m, _, k), rng = data.mnk, data.generator(3)
    _, stored = _exact(data, "mixed")
    a = stored["a"]
    a[rng.integers(max(1, m - 1)), rng.integers(k)] = encode(ACTIVATIONS, np.inf)
    a[m - 1, k - 1] = encode(ACTIVATIONS, np.nan)
    return "NaN and infinity in two rows of A", stored


_PROBES: dict[str, Callable[[Int4Data], tuple[str, Stored]]] = {
    "exact": lambda data: _exact(data, "mixed"),
    "exact_signed": lambda data: _exact(data, "signed"),
    "exact_positive": lambda data: _exact(data, "positive"),
    "codes": _codes,
    "non_finite": _non_finite,
}
ALL_PROBES = ("exact_signed", "exact_positive", "codes", "non_finite")
