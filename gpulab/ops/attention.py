"""out = softmax(Q K^T / sqrt(head_dim) + bias, over the keys seen) V, and the log-sum-exp of rows.

Arrays are row-major: q and out (batch, heads, seq_q, head_dim), k and v (batch, kv_heads, seq_k,
head_dim), lse (batch, heads, seq_q), bias (bias_planes, seq_q, seq_k) with 0, 1 or heads planes,
mask (mask_planes, seq_q, seq_k), nonzero where a key may be seen, with 0, 1 or batch planes.

Query i stands at key position i + seq_k - seq_q. Causal: it sees no key behind its position.
Window w: it sees keys nearer than w positions. A row that sees no key is 0, its log-sum-exp -inf.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import storage_dtype
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Capability, VariantLike
from gpulab.ops.attention_contract import CONTRACTS, AttentionContract, scaled
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_families import QUICK, AttentionFamily, draw, families_for, get_family
from gpulab.ops.attention_formula import key_range
from gpulab.ops.attention_judge import Case
from gpulab.ops.base import Dims, Speed
from gpulab.ops.judging import Asked, JudgedOp

MAX_HEAD_DIM = 256
MAX_ELEMENTS = 1 << 40
"""Elements of one array beyond which a size is refused as a slip of the keyboard."""


class Attention(JudgedOp):
    """Attention forward, float32 inside."""

    name: ClassVar[str] = "attention"
    speed: ClassVar[Speed] = "tflops"
    dims: ClassVar[tuple[str, ...]] = (
        "batch",
        "heads",
        "kv_heads",
        "seq_q",
        "seq_k",
        "head_dim",
        "causal",
        "window",
        "bias_planes",
        "mask_planes",
    )

    def check_dims(self, dims: Dims) -> None:
        """See ``Op``; ``window`` 0 is no window, ``causal`` is 0 or 1."""
        if set(dims) != set(self.dims):
            raise UsageError(
                f"attention has the dims {', '.join(self.dims)}, got {', '.join(dims) or 'none'}"
            )
        for name, value in dims.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise UsageError(f"{name} = {value!r} must be a whole number")
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k"):
            if not 1 <= dims[name] < 1 << 31:
                raise UsageError(f"{name} = {dims[name]} is outside 1 .. {(1 << 31) - 1}")
        if not 1 <= dims["head_dim"] <= MAX_HEAD_DIM:
            raise UsageError(
                f"head_dim = {dims['head_dim']} is outside 1 .. {MAX_HEAD_DIM}",
                fix="64 and 128 are usual",
            )
        if dims["heads"] % dims["kv_heads"]:
            raise UsageError(
                f"kv_heads = {dims['kv_heads']} does not divide heads = {dims['heads']}",
                fix="every key head serves the same number of query heads",
            )
        if dims["causal"] not in (0, 1):
            raise UsageError(f"causal = {dims['causal']} is neither 0 nor 1")
        if not 0 <= dims["window"] < 1 << 31:
            raise UsageError(f"window = {dims['window']} is outside 0 .. {(1 << 31) - 1}")
        for name, of in (("bias_planes", "heads"), ("mask_planes", "batch")):
            if dims[name] not in (0, 1, dims[of]):
                raise UsageError(f"{name} = {dims[name]} is neither 0, 1 nor {of} = {dims[of]}")
        for name, size in self._sizes(dims).items():
            if size > MAX_ELEMENTS:
                shown = " ".join(f"{dim}={value}" for dim, value in dims.items() if value)
                raise UsageError(
                    f"{shown}: {name} has more than 2^40 elements", fix="choose a smaller size"
                )

    @staticmethod
    def _sizes(dims: Dims) -> dict[str, int]:
        """Elements of every array."""
        d = {name: int(value) for name, value in dims.items()}
        rows = d["batch"] * d["heads"] * d["seq_q"]
        keys = d["batch"] * d["kv_heads"] * d["seq_k"]
        plane = d["seq_q"] * d["seq_k"]
        return {
            "q": rows * d["head_dim"],
            "k": keys * d["head_dim"],
            "v": keys * d["head_dim"],
            "bias": d["bias_planes"] * plane,
            "mask": d["mask_planes"] * plane,
            "lse": rows,
            "keys": keys,
        }

    def terms(self, dims: Dims) -> int:
        """Keys."""
        return int(dims["seq_k"])

    def scalars(self, variant: VariantLike, dims: Dims) -> dict[str, float]:
        """None."""
        return {}

    def seen_pairs(self, dims: Dims) -> int:
        """Pairs of query and key of one head that causality and window leave."""
        first, last = key_range(dims, np.arange(dims["seq_q"], dtype=np.int64))
        return int((last - first).sum())

    def flops(self, dims: Dims) -> int:
        """4 head_dim for every pair of query and key that causality and window leave."""
        pairs = int(dims["batch"]) * int(dims["heads"]) * self.seen_pairs(dims)
        return 4 * int(dims["head_dim"]) * pairs

    def bytes_moved(self, variant: VariantLike, dims: Dims) -> int:
        """Every array read or written once."""
        n = self._sizes(dims)
        size = storage_dtype(variant.format).itemsize
        out = n["q"] * storage_dtype(variant.output).itemsize
        total = (n["q"] + n["k"] + n["v"]) * size + out + 4 * n["bias"] + n["mask"] + 4 * n["lse"]
        if scaled(variant.format):
            total += 4 * (n["lse"] + 2 * n["keys"])
        return total

    def host_bytes(self, dims: Dims) -> int:
        """Originals, stored inputs, two results, and bands of float64."""
        n = self._sizes(dims)
        return 8 * (2 * n["q"] + n["k"] + n["v"]) + 6 * (n["bias"] + n["mask"]) + (256 << 20)

    def contract(
        self, variant: VariantLike, capability: Capability, atomics: bool = False
    ) -> AttentionContract:
        """The contract of a variant.

        Raises:
            UsageError: one that the operation does not have.
        """
        made = AttentionContract.of(variant, capability, atomics)
        if made.name not in CONTRACTS or (made.name == "") == made.scaled:
            raise UsageError(f"attention on {made.format} has no contract {made.name!r}")
        return made

    def make_inputs(
        self, dims: Dims, family: str | AttentionFamily, fmt: str, seed: int
    ) -> dict[str, NDArray[Any]]:
        """Original float32 ``q``, ``k``, ``v``, ``bias`` and the int8 ``mask``."""
        return draw(get_family(family), dims, fmt, seed)

    def stored_inputs(
        self,
        variant: VariantLike,
        dims: Dims,
        family: str | AttentionFamily,
        seed: int,
        cache: Cache | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Inputs of a family as kernels of the variant take them."""
        whole = {k: int(v) for k, v in dims.items()}
        contract = self.contract(variant, (12, 0))
        return Data(contract, whole, seed, cache or Cache()).family(get_family(family)).stored

    def digest_inputs(self, variant: VariantLike, dims: Dims, seed: int) -> dict[str, NDArray[Any]]:
        """Signs times lognormal, so that exponents spread."""
        return self.stored_inputs(variant, dims, "mixed", seed)

    def case(self, asked: Asked) -> Case:
        """See ``JudgedOp``; ``quick`` has four families and those that a lesson names."""
        contract = self.contract(asked.variant, asked.capability, asked.atomics)
        data = Data(contract, asked.dims, asked.seed, asked.cache)
        return Case(asked, data, self._families(asked))

    @staticmethod
    def _families(asked: Asked) -> list[AttentionFamily]:
        if asked.families is not None:
            return [get_family(f) for f in asked.families]
        made = families_for(asked.variant.format)
        names = [*QUICK, *asked.variant.caught_on]
        if asked.effort == "full":
            names += made
        return [get_family(n) for n in dict.fromkeys(names) if n in made]


ATTENTION = Attention()
"""Registered by its name."""
