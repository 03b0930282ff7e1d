"""What every honest kernel has to pass: input families, seeds and sizes, and how they are combined.

A space names the factors of some cases of an operation. Usually its cases are a covering array:
every pair of values occurs, among them every (family, size), (family, seed) and (size, seed). In
full they are the whole product of family, seed and sizes, and the remaining factors take turns.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covering import Allowed, Case, Factors, Pair, anything, covering, possible, uncovered

from gpulab import ops, registry
from gpulab.numerics import inputs
from gpulab.ops import attention_families, rows_families

SEEDS = tuple(range(10))
SIZES = (1, 15, 16, 17, 64, 255, 256, 257)
COLUMNS = (1, 2, 3, 255, 257, 1000, 50257)
SEQUENCES = (1, 7, 127, 129)
HEAD_DIMS = (16, 40, 64, 80, 96, 128, 192, 256)
ROWS = (1, 3, 11)
"""Rows: one, a few, and several of what share a block, with a block in part."""
LONG = 10000
LONG_ROWS = 3
"""Columns from which there are at most so many rows."""
HEADS = ((1, 1), (2, 1), (3, 3), (4, 2))
"""(heads, kv_heads): alone, multi-query, one to one, grouped."""
WINDOWS = (0, 1, 5, 40)
PLANES = ("none", "one", "all")
ROW_OPS = ("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy")
OPS = (*ROW_OPS, "matmul", "attention")
"""The cheap ones first."""

Dims = dict[str, int]


@dataclass(frozen=True)
class Space:
    """Factors of the cases of an operation, beside family and seed.

    Args:
        name: as in the lines.
        sizes: factors whose whole product is run in full; empty: always a covering array.
        others: further factors.
        dims: the operation's dims from a case.
        companions: families that a verdict needs beside the one of the case, since it rests on
            several: one family alone has not the power to tell every mistake.
    """

    name: str
    dims: Callable[[Mapping[str, Any]], Dims]
    sizes: Factors
    others: Factors = field(default_factory=dict)
    companions: tuple[str, ...] = ()

    def factors(self, families: tuple[str, ...]) -> Factors:
        """All of them, with these families; none: the cases of a lesson, which names its own."""
        named = {"family": families} if families else {}
        return {**named, "seed": SEEDS, **self.sizes, **self.others}


def _square(case: Mapping[str, Any]) -> Dims:
    return dict.fromkeys("mnk", case["size"])


def _mixed(case: Mapping[str, Any]) -> Dims:
    return {name: case[name] for name in "mnk"}


def _rows(case: Mapping[str, Any]) -> Dims:
    few = LONG_ROWS if case["cols"] >= LONG else case["rows"]
    return {"rows": min(case["rows"], few), "cols": case["cols"]}


def _attention(case: Mapping[str, Any]) -> Dims:
    heads, kv_heads = case["heads"]
    planes = {"none": 0, "one": 1}
    return {
        "batch": case["batch"],
        "heads": heads,
        "kv_heads": kv_heads,
        "seq_q": case["seq_q"],
        "seq_k": case["seq_k"],
        "head_dim": case["head_dim"],
        "causal": case["causal"],
        "window": case["window"],
        "bias_planes": planes.get(case["bias"], heads),
        "mask_planes": planes.get(case["mask"], case["batch"]),
    }


def spaces(op: str) -> tuple[Space, ...]:
    """Of an operation."""
    if op == "matmul":
        return (
            Space("square", _square, {"size": SIZES}),
            Space("mixed", _mixed, {}, dict.fromkeys("mnk", SIZES)),
        )
    if op == "attention":
        others: Factors = {
            "head_dim": HEAD_DIMS,
            "heads": HEADS,
            "batch": (1, 2),
            "causal": (0, 1),
            "window": WINDOWS,
            "bias": PLANES,
            "mask": PLANES,
        }
        sizes = {"seq_q": SEQUENCES, "seq_k": SEQUENCES}
        return (Space("shapes", _attention, sizes, others, attention_families.QUICK),)
    quick = tuple(ops.get(op).quick)  # type: ignore[attr-defined]
    return (Space("rows", _rows, {"cols": COLUMNS}, {"rows": ROWS}, quick),)


def families(op: str, fmt: str) -> tuple[str, ...]:
    """The families to cover: all of an operation that are made for a format."""
    return made_for(op, fmt)


def made_for(op: str, fmt: str) -> tuple[str, ...]:
    """All input families of an operation that are made for a format."""
    module: Any = {"matmul": inputs, "attention": attention_families}.get(op, rows_families)
    found: tuple[str, ...] = module.families_for(fmt)
    return found


def families_of(space: Space, case: registry.Case, family: str | None) -> list[str]:
    """What the kernel is judged on together: what a verdict needs, a lesson's, the case's."""
    wanted = [*space.companions, *case.variant.caught_on, *([family] if family else [])]
    made = made_for(case.spec.op, case.variant.format)
    if not wanted:
        wanted = list(inputs.DEFAULT)
    return [name for name in dict.fromkeys(wanted) if name in made]


def allowed_for(space: Space, case: registry.Case, capability: tuple[int, int]) -> Allowed:
    """Whether the kernel runs on the dims of a case of the space."""

    def allowed(one: Mapping[str, Any]) -> bool:
        return case.refusal(capability, "emulated", space.dims(one)) is None

    return allowed


class Arrays:
    """The covering arrays, each built once: kernels with the same families and limits share one."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._made: dict[Any, list[Case]] = {}

    def cases(
        self, space: Space, case: registry.Case, capability: tuple[int, int], *, full: bool
    ) -> list[Case]:
        """The cases of a kernel in a space.

        A lesson has no family of its own and no pairs it must meet: where its mistake cannot show,
        it refuses.
        """
        lesson = case.variant.lesson
        made = () if lesson else families(case.spec.op, case.variant.format)
        factors = space.factors(made)
        allowed = anything if lesson else allowed_for(space, case, capability)
        if full and space.sizes and not lesson:
            return [one for one in self._product(space, factors) if allowed(one)]
        there = possible(factors, allowed)
        free = len(there) == len(possible(factors))
        key = (case.spec.op, space.name, made, None if free else frozenset(there))
        if key not in self._made:
            self._made[key] = covering(factors, self.seed, anything if free else allowed)
        return self._made[key]

    def _product(self, space: Space, factors: Factors) -> list[Case]:
        rng = random.Random(self.seed)
        whole = {name: values for name, values in factors.items() if name not in space.others}
        return [
            dict(zip(whole, values, strict=True))
            | {name: rng.choice(list(chosen)) for name, chosen in space.others.items()}
            for values in itertools.product(*whole.values())
        ]


def missing(
    space: Space, case: registry.Case, capability: tuple[int, int], ran: list[Case]
) -> set[Pair]:
    """Pairs of an honest kernel that no case which ran has."""
    factors = space.factors(families(case.spec.op, case.variant.format))
    return uncovered(factors, ran, allowed_for(space, case, capability))
