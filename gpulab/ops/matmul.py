"""C = A B, row-major: A (m, k), B (k, n), C (m, n)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import encode, get, storage_dtype
from gpulab.formats.threads import together
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Contract, VariantLike
from gpulab.numerics.inputs import DEFAULT, Family, draw, get_family
from gpulab.ops.base import Dims, Speed
from gpulab.ops.judging import Asked, JudgedOp
from gpulab.ops.matmul_data import Data, originals
from gpulab.ops.matmul_judge import Case

MAX_ELEMENTS = 1 << 40
"""Elements of one matrix beyond which a size is refused as a slip of the keyboard."""


class Matmul(JudgedOp):
    """The product of two matrices, accumulated in float32 unless a row declares otherwise."""

    name: ClassVar[str] = "matmul"
    speed: ClassVar[Speed] = "tflops"
    dims: ClassVar[tuple[str, ...]] = ("m", "n", "k")

    def check_dims(self, dims: Dims) -> None:
        """See ``Op``."""
        if set(dims) != set(self.dims):
            raise UsageError(f"matmul has the dims m, n, k, got {', '.join(dims) or 'none'}")
        for name, value in dims.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise UsageError(f"{name} = {value!r} must be a whole number")
            if not 1 <= value < 1 << 31:
                raise UsageError(f"{name} = {value} is outside 1 .. {(1 << 31) - 1}")
        m, n, k = (int(dims[name]) for name in self.dims)
        if max(m * k, k * n, m * n) > MAX_ELEMENTS:
            raise UsageError(
                f"m={m} n={n} k={k}: a matrix of more than 2^40 elements",
                fix="choose a smaller size",
            )

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
        """A and B read once, C written once."""
        m, n, k = (int(dims[name]) for name in self.dims)
        size_in = storage_dtype(variant.format).itemsize
        return (m * k + k * n) * size_in + m * n * storage_dtype(variant.output).itemsize

    def host_bytes(self, dims: Dims) -> int:
        """Originals, stored inputs, references (16 bytes an element) and two results."""
        m, n, k = (int(dims[name]) for name in self.dims)
        return (m * k + k * n) * (4 + 4) + m * n * (16 + 2 * 4 + 8)

    def make_inputs(
        self, dims: Dims, family: str | Family, fmt: str, seed: int
    ) -> dict[str, NDArray[Any]]:
        """Original float32 ``a`` and ``b``."""
        m, n, k = (int(dims[name]) for name in self.dims)
        a, b = together(
            m * k + k * n,
            lambda: draw(family, 0, (m, k), fmt, seed),
            lambda: draw(family, 1, (k, n), fmt, seed),
        )
        return {"a": a, "b": b}

    def stored_inputs(
        self,
        variant: VariantLike,
        dims: Dims,
        family: str | Family,
        seed: int,
        cache: Cache | None = None,
    ) -> dict[str, NDArray[Any]]:
        """``a`` and ``b`` as stored."""
        fmt, whole = variant.format, {name: int(dims[name]) for name in self.dims}
        drawn = originals(self, whole, get_family(family), fmt, seed, cache or Cache())
        return {name: encode(fmt, values) for name, values in drawn.items()}

    def digest_inputs(self, variant: VariantLike, dims: Dims, seed: int) -> dict[str, NDArray[Any]]:
        """Signs times powers of two between 2^-6 and 2^2; all codes of integers."""
        rng = np.random.Generator(np.random.PCG64(seed))
        m, n, k = (int(dims[name]) for name in self.dims)
        stored = {}
        for name, shape in (("a", (m, k)), ("b", (k, n))):
            if get(variant.format).is_integer:
                values = rng.integers(-128, 128, shape).astype(np.float64)
            else:
                values = rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(-6, 2, shape))
            stored[name] = encode(variant.format, values, saturate=True)
        return stored

    def case(self, asked: Asked) -> Case:
        """See ``JudgedOp``.

        Probes: ``quick`` one exact probe, ``full`` signed and positive apart, one-hot and
        non-finite. ``quick`` with four families is 6 runs, ``full`` 9.
        """
        contract = Contract.of(asked.variant, asked.capability, asked.atomics)
        data = Data(self, contract, asked.dims, asked.seed, asked.cache)
        return Case(asked, data, DEFAULT if asked.families is None else asked.families)


MATMUL = Matmul()
