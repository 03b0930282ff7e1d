"""Inputs, exact answers, simulations of attention, each computed once and in little memory.

The float64 reference never holds more than a band of scores. Where the whole result is too much, a
seeded sample of the queries of every head is checked, over all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode, encode, threads
from gpulab.numerics.cache import Cache
from gpulab.numerics.inputs import rounding_share
from gpulab.numerics.simulate import Spread
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_families import AttentionFamily, draw
from gpulab.ops.attention_formula import Answer, Floats, Head, Scales, answer, exact, visible
from gpulab.ops.attention_scaling import quantise
from gpulab.ops.attention_simulate import spread

T = TypeVar("T")

FULL_PRODUCTS = 1 << 31
"""Products of one matmul up to which every query is checked."""
SAMPLED_PRODUCTS = 1 << 30
"""Products of one matmul on the sample where there are more."""
_BAND_SCORES = 1 << 20
"""Scores held at a time."""
_BLOCK_PRODUCTS = 1 << 23
"""Products of one matmul on the block where contracts and mutants are simulated."""
_FEWEST_QUERIES = 8
_SHARE_ELEMENTS = 1 << 20
"""Elements that tell whether storage rounds."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of one run with what they must give.

    Args:
        share: of the elements that storage changes (smallest of q, k, v).
        stored: arrays by parameter name.
        original: float32 arrays, or None where they are the stored ones.
        exact_sums: no order of the sums rounds (probes).
        name: what tells them from all others of a contract; None: no answer to them is kept.
    """

    share: float
    stored: dict[str, NDArray[Any]]
    original: dict[str, NDArray[Any]] | None
    exact_sums: bool = False
    name: Hashable = None


@dataclass(frozen=True)
class Piece:
    """Some queries of one head, with their answers.

    Args:
        head: of batch * heads.
        queries: their positions in the sequence (r,).
        answer: what they must give.
        r0: exact over the original inputs.
    """

    head: int
    queries: NDArray[np.int64]
    answer: Answer
    r0: Floats


@dataclass(frozen=True)
class Data:
    """The values of one case, through a cache.

    Args:
        contract: of the kernel.
        dims: of the operation.
        seed: of everything drawn.
        cache: shared by the cases of a run.
    """

    contract: AttentionContract
    dims: dict[str, int]
    seed: int
    cache: Cache

    def cached(self, what: str, *key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on the dims, the seed and ``key``."""
        dims = tuple(self.dims.items())
        return self.cache.get(("attention", what, dims, self.seed, *key), make)

    def _drawn(self, what: str, *key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on the shapes, the seed and ``key``, and not on who sees whom."""
        shapes = tuple((n, x) for n, x in self.dims.items() if n not in ("causal", "window"))
        return self.cache.get(("attention", what, shapes, self.seed, *key), make)

    def family(self, family: AttentionFamily) -> Inputs:
        """Inputs of a family as the contract stores them."""
        key = (family, self.contract.format, self.contract.name)
        return self._drawn("family", *key, make=lambda: self._make(family))

    def _make(self, family: AttentionFamily) -> Inputs:
        fmt = self.contract.format
        key = (family, fmt if family.by_format or family.formats is not None else "")
        original = self._drawn(
            "originals", *key, make=lambda: draw(family, self.dims, fmt, self.seed)
        )
        share = min(rounding_share(fmt, _some_rows(original[n])) for n in "qkv")
        return Inputs(share, self.store(original), original, name=key)

    def store(self, original: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Inputs as kernels of the contract take them."""
        stored = {n: original[n] for n in ("bias", "mask")}
        if self.contract.scaled:
            return stored | quantise(self.contract.format, self.contract.name, original)
        return stored | {n: encode(self.contract.format, original[n]) for n in "qkv"}

    @property
    def sample(self) -> tuple[int, str, float]:
        """Queries checked a head, in words, and as a share."""
        d = self.dims
        every = d["batch"] * d["heads"]
        a_head = d["seq_k"] * d["head_dim"] * every
        if d["seq_q"] * a_head <= FULL_PRODUCTS:
            return d["seq_q"], f"all {d['seq_q']} queries of {every} heads", 1.0
        wanted = max(2, SAMPLED_PRODUCTS // a_head)
        count = len(self._queries(0, wanted))
        share = count / d["seq_q"]
        text = (
            f"{count} of {d['seq_q']} queries of each of {every} heads, seeded, over all keys; "
            f"each {d['seq_q'] / (wanted * every):.4g} queries in a row have one of some head"
        )
        return wanted, text, share

    def _queries(self, head: int, wanted: int) -> NDArray[np.int64]:
        """The first, the last, and a seeded one in each of ``wanted`` equally wide strips.

        A strip is shared out among the heads, a head looking at another part of each, so that
        together they look at every part.
        """
        last = self.dims["seq_q"] - 1
        if wanted > last:
            return np.arange(last + 1)
        every = self.dims["batch"] * self.dims["heads"]
        rng = np.random.Generator(np.random.PCG64([self.seed, head]))
        parts = np.arange(wanted) * every + (head + np.arange(wanted)) % every
        inside = (parts + rng.random(wanted)) * (last + 1) / (wanted * every)
        return np.unique(np.concatenate([inside.astype(np.int64), [0, last]]))

    def pieces(self, inputs: Inputs) -> Iterator[Piece]:
        """The checked queries, a band at a time; heads are worked out several at once."""
        every = range(self.dims["batch"] * self.dims["heads"])
        at_once = 4 * threads.cores()
        for first in every[::at_once]:  # what waits to be looked at stays in memory
            heads = every[first : first + at_once]
            make = partial(self._pieces, inputs, heads)
            yield from self.kept("pieces", self.contract, inputs, first, make=make)

    def _pieces(self, inputs: Inputs, heads: range) -> list[Piece]:
        """Of some heads."""
        d, (wanted, _, _) = self.dims, self.sample
        step = max(1, _BAND_SCORES // d["seq_k"])

        def bands(arrays: dict[str, NDArray[Any]], number: int, stored: bool) -> list[Head]:
            queries = self._queries(number, wanted)
            head = self.head(arrays, number, queries, stored)
            return [head.rows(slice(at, at + step)) for at in range(0, len(queries), step)]

        def of(number: int) -> list[Piece]:
            found = []
            for head in bands(inputs.stored, number, True):
                right = answer(self.contract, head, inputs.exact_sums)
                found.append(Piece(number, head.queries, right, right.out))
            return found

        def ideal(number: int) -> list[Floats]:
            assert inputs.original is not None  # asked below
            return [exact(head)[0] for head in bands(inputs.original, number, False)]

        scores = len(heads) * wanted * d["seq_k"]
        found = list(chain.from_iterable(threads.each(of, heads, scores, threads.cores())))
        if inputs.original is None:
            return found

        def ideals() -> list[Floats]:
            return list(chain.from_iterable(threads.each(ideal, heads, scores, threads.cores())))

        r0 = self.kept("r0", None, inputs, heads[0], make=ideals)  # whatever stores them
        return [replace(piece, r0=mine) for piece, mine in zip(found, r0, strict=True)]

    def kept(
        self, what: str, contract: Hashable, inputs: Inputs, *key: Hashable, make: Callable[[], T]
    ) -> T:
        """What depends on inputs, and on a contract or none; kept where the inputs have a name."""
        if inputs.name is None:
            return make()
        return self.cached(what, contract, inputs.name, *key, make=make)

    def head(
        self,
        arrays: dict[str, NDArray[Any]],
        number: int,
        queries: NDArray[np.int64],
        stored: bool = True,
    ) -> Head:
        """Some queries of head ``number`` of batch * heads, and its keys."""
        d = self.dims
        entry, head = divmod(number, d["heads"])
        kv = head // (d["heads"] // d["kv_heads"])
        codes = (arrays["q"][entry, head][queries], arrays["k"][entry, kv], arrays["v"][entry, kv])
        fmt = self.contract.format
        values = [decode(fmt, x) if stored else x.astype(np.float64) for x in codes]
        scales = None
        if stored and self.contract.scaled:
            scales = Scales(
                arrays["q_scale"][entry, head][queries].astype(np.float64),
                arrays["k_scale"][entry, kv].astype(np.float64),
                arrays["v_scale"][entry, kv].astype(np.float64),
            )
            for i, scale in enumerate((scales.q, scales.k, scales.v)):
                values[i] = values[i] * scale[:, None]
        seen, bias = visible(d, queries), None
        if d["mask_planes"]:
            seen &= arrays["mask"][entry if d["mask_planes"] > 1 else 0][queries] != 0
        if d["bias_planes"]:
            bias = arrays["bias"][head if d["bias_planes"] > 1 else 0][queries].astype(np.float64)
        return Head(number, queries, values[0], values[1], values[2], bias, seen,
                    codes if stored else None, scales)  # fmt: skip

    def block(self, inputs: Inputs) -> list[Head]:
        """A few queries of the first and the last head, where simulations and mutants run: under
        causality the last query sees every key."""
        d = self.dims
        numbers = sorted({0, d["batch"] * d["heads"] - 1})
        a_query = d["seq_k"] * d["head_dim"] * len(numbers)
        wanted = max(_FEWEST_QUERIES // len(numbers), min(32, _BLOCK_PRODUCTS // a_query))
        return self.kept(
            "block",
            self.contract,
            inputs,
            make=lambda: [self.head(inputs.stored, n, self._queries(n, wanted)) for n in numbers],
        )

    def answers(self, inputs: Inputs) -> list[Answer]:
        """Answers on the block."""
        return self.kept(
            "answers",
            self.contract,
            inputs,
            make=lambda: [
                answer(self.contract, head, inputs.exact_sums) for head in self.block(inputs)
            ],
        )

    def spread(self, family: AttentionFamily) -> Spread | None:
        """Moments of the simulated contract's error; None where the family is no evidence."""
        if not family.rounds:
            return None
        c = self.contract
        key = (family, c.format, c.output, c.name, c.sums.instruction, c.sums.capability)

        def make() -> Spread:
            inputs = self.family(family)
            return spread(c, self.block(inputs), self.answers(inputs))

        return self.cached("spread", *key, make=make)


def _some_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Rows from all over an array."""
    rows = array.reshape(-1, array.shape[-1])
    return rows[:: max(1, rows.size // _SHARE_ELEMENTS)]
