"""C = A B, row-major: A (m, k), B (k, n), C (m, n)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import encode, get, storage_dtype
from gpulab.formats.threads import together
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Capability, Contract, VariantLike
from gpulab.numerics.inputs import DEFAULT, Family, draw
from gpulab.numerics.verdict import Judgement
from gpulab.ops.base import Dims, Effort, RestsOn, Runner, Speed
from gpulab.ops.matmul_data import Data
from gpulab.ops.matmul_judge import Case

MAX_ELEMENTS = 1 << 40
"""Elements of one matrix beyond which a size is refused as a slip of the keyboard."""


class Matmul:
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
        self, variant: VariantLike, dims: Dims, family: str | Family, seed: int
    ) -> dict[str, NDArray[Any]]:
        """``a`` and ``b`` as stored."""
        drawn = self.make_inputs(dims, family, variant.format, seed)
        return {name: encode(variant.format, values) for name, values in drawn.items()}

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

    def judge(
        self,
        variant: VariantLike,
        dims: Dims,
        run: Runner,
        *,
        capability: Capability,
        families: Sequence[str | Family] | None = None,
        seed: int = 0,
        effort: Effort = "quick",
        atomics: bool = False,
        cache: Cache | None = None,
        rests_on: RestsOn = "both",
    ) -> Judgement:
        """Run a kernel and judge it by the contract of its variant (a lesson: by the operation's).

        Runs: one for each family, one repetition of the first family with the other poison, and
        the probes: ``quick`` one exact probe, ``full`` signed and positive apart, one-hot and
        non-finite. ``quick`` with four families is 6 runs, ``full`` 9.

        Args:
            variant: the row: formats, accumulator, instruction, lesson.
            dims: m, n, k.
            run: the kernel.
            capability: where it runs; decides the arithmetic of a tensor-core instruction.
            families: input families; None: normal, uniform, lognormal, periodic.
            seed: of inputs, probes and sampled blocks.
            effort: ``quick`` or ``full``.
            atomics: the kernel declares that the order of its sums may change between runs.
            cache: shared by the cases of a run; None: nothing is kept.
            rests_on: ``contract``: the verdict and its power certificate rest on the published
                ceiling alone (a demonstration of what it cannot see).

        Raises:
            UsageError: bad dims, family or effort.
            GpulabError: whatever the runner raises (fault, timeout, build).
        """
        self.check_dims(dims)
        if effort not in ("quick", "full"):
            raise UsageError(f"unknown effort {effort!r}", fix="use quick or full")
        names = DEFAULT if families is None else tuple(families)
        if not names:
            raise UsageError("a verdict needs at least one input family")
        contract = Contract.of(variant, capability, atomics)
        data = Data(self, contract, {k: int(v) for k, v in dims.items()}, seed, cache or Cache())
        return Case(contract, data, run, names, effort, rests_on).judge()


MATMUL = Matmul()
