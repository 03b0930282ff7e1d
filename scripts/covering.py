"""Covering arrays: few cases in which every pair of values of two factors occurs.

A factor is a name with its values, the cheapest first. A case gives each factor one value. The
array is built greedily, one case after the other, as AETG does: a case starts from a pair that
still misses and takes for each further factor the value that meets most missing pairs; where none
is met, the cheapest. Values that cannot go together are excluded by a predicate, which must hold of
a part of a case if it holds of the part filled up with the cheapest values.

Source: D. Cohen et al., "The AETG system", IEEE Trans. Software Eng. 23(7), 1997.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

Case = dict[str, Any]
Factors = Mapping[str, Sequence[Any]]
Allowed = Callable[[Case], bool]
Pair = tuple[str, Hashable, str, Hashable]
"""(factor, value, later factor, value)."""

CANDIDATES = 8
"""Cases tried for each that is kept."""


def anything(case: Case) -> bool:
    return True


def pairs(case: Mapping[str, Any], names: Sequence[str]) -> set[Pair]:
    """The pairs that a case (or a part of one) has."""
    there = [name for name in names if name in case]
    return {(a, case[a], b, case[b]) for a, b in itertools.combinations(there, 2)}


def possible(factors: Factors, allowed: Allowed = anything) -> set[Pair]:
    """All pairs that may go together."""
    names, cheapest = list(factors), {name: values[0] for name, values in factors.items()}
    return {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(factors[a], factors[b])
        if allowed(cheapest | {a: x, b: y})
    }


def uncovered(
    factors: Factors, cases: Iterable[Mapping[str, Any]], allowed: Allowed = anything
) -> set[Pair]:
    """Pairs that may go together and that no case has."""
    names = list(factors)
    return possible(factors, allowed).difference(*(pairs(case, names) for case in cases))


def covering(factors: Factors, seed: int, allowed: Allowed = anything) -> list[Case]:
    """Cases that have every possible pair.

    Args:
        factors: two or more, each with its values, the cheapest first.
        seed: of the choices among equals.
        allowed: whether a case may be.
    """
    rng = random.Random(seed)
    missing, found = possible(factors, allowed), list[Case]()
    while missing:
        # Sorted, since the order of a set of strings changes from run to run.
        starts = sorted(missing, key=repr)
        tried = [
            _case(factors, rng.choice(starts), missing, allowed, rng) for _ in range(CANDIDATES)
        ]
        best = max(tried, key=lambda case: len(missing & pairs(case, list(factors))))
        missing -= pairs(best, list(factors))
        found.append({name: best[name] for name in factors})
    return found


def _case(
    factors: Factors, start: Pair, missing: set[Pair], allowed: Allowed, rng: random.Random
) -> Case:
    a, x, b, y = start
    names, case = list(factors), {a: x, b: y}
    cheapest = {name: values[0] for name, values in factors.items()}
    others = [name for name in names if name not in case]
    rng.shuffle(others)
    for name in others:
        best: list[Any] = []
        most = 0
        for value in factors[name]:
            grown = case | {name: value}
            if not allowed(cheapest | grown):
                continue
            new = len(missing & pairs(grown, names)) - len(missing & pairs(case, names))
            if not best or new > most:
                best, most = [value], new
            elif new == most > 0:
                best.append(value)
        case[name] = rng.choice(best)
    return case
