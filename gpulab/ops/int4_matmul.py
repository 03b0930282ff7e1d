"""C = A W with weights in int4 and a half scale for each group of rows, as inference has it.

A (m, k) fp16, C (m, n) float32; the layout of W (k, n) and its scales is in ``int4_weights``, the
declared arithmetic and its bound in ``int4_contract``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import encode, storage_dtype
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import VariantLike
from gpulab.numerics.inputs import DEFAULT, Family, draw, get_family
from gpulab.numerics.mutants import Mutant
from gpulab.ops import int4_weights as int4
from gpulab.ops.base import Dims, Speed
from gpulab.ops.int4_contract import ACTIVATIONS, Int4Contract
from gpulab.ops.int4_data import Int4Data
from gpulab.ops.int4_mutants import MUTANTS
from gpulab.ops.judging import Asked, JudgedOp
from gpulab.ops.matmul import MATMUL
from gpulab.ops.matmul_judge import Case

GROUP_STEP = 8


class Int4Case(Case):
    """One kernel at one size."""

    standard: ClassVar[Sequence[Mutant]] = MUTANTS


class Int4Matmul(JudgedOp):
    """The product of half activations and int4 weights, summed in float32."""

    name: ClassVar[str] = "int4_matmul"
    speed: ClassVar[Speed] = "gb_per_s"
    dims: ClassVar[tuple[str, ...]] = ("m", "n", "k", "group")

    def check_dims(self, dims: Dims) -> None:
        """See ``Op``; a group is a multiple of 8 rows, the last one may be shorter."""
        if set(dims) != set(self.dims):
            raise UsageError(
                f"int4_matmul has the dims m, n, k, group, got {', '.join(dims) or 'none'}"
            )
        MATMUL.check_dims({name: dims[name] for name in ("m", "n", "k")})
        group = dims["group"]
        whole = not isinstance(group, bool) and isinstance(group, int | np.integer)
        if not whole or group < GROUP_STEP or group % GROUP_STEP:
            raise UsageError(f"group = {group!r} is no positive multiple of {GROUP_STEP}")

    def terms(self, dims: Dims) -> int:
        """K."""
        return int(dims["k"])

    def scalars(self, variant: VariantLike, dims: Dims) -> dict[str, float]:
        """None."""
        return {}

    def flops(self, dims: Dims) -> int:
        """2 m n k."""
        return 2 * int(dims["m"]) * int(dims["n"]) * int(dims["k"])

    def bytes_moved(self, variant: VariantLike, dims: Dims) -> int:
        """A, the packed weights and the scales read once, C written once."""
        m, n, k, group = (int(dims[name]) for name in self.dims)
        half = storage_dtype(ACTIVATIONS).itemsize
        read = half * m * k + -(-k // 2) * n + half * -(-k // group) * n
        return read + m * n * storage_dtype(variant.output).itemsize

    def host_bytes(self, dims: Dims) -> int:
        """Weights in float32 and float64, references (16 bytes an element) and two results."""
        m, n, k, _ = (int(dims[name]) for name in self.dims)
        return (m * k + k * n) * (4 + 8) + m * n * (16 + 2 * 4 + 8)

    def make_inputs(
        self, dims: Dims, family: str | Family, fmt: str, seed: int
    ) -> dict[str, NDArray[Any]]:
        """Original float32 ``a`` (m, k), and the weights (k, n) that are quantised."""
        m, n, k, _ = (int(dims[name]) for name in self.dims)
        return {
            "a": draw(family, 0, (m, k), ACTIVATIONS, seed),
            "w": draw(family, 1, (k, n), ACTIVATIONS, seed),
        }

    def stored_inputs(
        self,
        variant: VariantLike,
        dims: Dims,
        family: str | Family,
        seed: int,
        cache: Cache | None = None,
    ) -> dict[str, NDArray[Any]]:
        """``a``, ``w`` and ``scales`` as stored."""
        contract = Int4Contract.of(variant, (12, 0))
        whole = {name: int(value) for name, value in dims.items()}
        data = Int4Data(self, contract, whole, seed, cache or Cache())
        return data.stored(get_family(family), whole)[0]

    def digest_inputs(self, variant: VariantLike, dims: Dims, seed: int) -> dict[str, NDArray[Any]]:
        """Signs times powers of two between 2^-6 and 2^2; all codes; scales of every exponent."""
        rng = np.random.Generator(np.random.PCG64(seed))
        m, n, k, group = (int(dims[name]) for name in self.dims)
        a = rng.choice([-1.0, 1.0], (m, k)) * np.exp2(rng.uniform(-6, 2, (m, k)))
        q = rng.integers(-8, 8, (k, n)).astype(np.float64)
        scales = encode(ACTIVATIONS, np.exp2(rng.uniform(-10, 2, (-(-k // group), n))))
        return {"a": encode(ACTIVATIONS, a), **int4.store(q, scales)}

    def case(self, asked: Asked) -> Int4Case:
        """See ``JudgedOp``; judged as ``matmul`` is.

        Probes: ``quick`` one exact probe; ``full`` signed and positive apart, one that returns
        single weights, and non-finite activations.
        """
        if asked.rests_on != "both":
            raise UsageError("int4_matmul: the published ceiling alone decides nothing")
        contract = Int4Contract.of(asked.variant, asked.capability, asked.atomics)
        data = Int4Data(self, contract, asked.dims, asked.seed, asked.cache)
        return Int4Case(asked, data, DEFAULT if asked.families is None else asked.families)


INT4_MATMUL = Int4Matmul()
