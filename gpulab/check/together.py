"""Blocks that make one part of a result together: a sum that is split among them, for example.

Where blocks meet by atomics a few drawn ones may leave a part unfinished. How many make a part is
seen from the launch of a result of one element with as many terms; which they are is one of a few
layouts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from gpulab.check.runner import Submitted
from gpulab.check.subject import Subject
from gpulab.exercises.base import Exercise

MOST = 256
"""Blocks that are launched together."""


def of_one_element(exercise: Exercise, subject: Subject) -> dict[str, int]:
    """The timed dims, but for those that the results do not depend on each other along."""
    of_results = {d for p in exercise.params if p.role == "out" for d in p.dims}
    of_inputs = {d for p in exercise.params if p.role == "in" for d in p.dims}
    apart = {*subject.along, *(of_results if of_inputs - of_results else ())}
    return {d: 1 if d in apart else size for d, size in exercise.timed.items()}


def groups(
    run: Submitted, one: Mapping[str, int], dims: Mapping[str, int], chosen: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Blocks to launch together, the likeliest first, the chosen ones alone at last.

    Args:
        run: the submission.
        one: dims of a result of one element.
        dims: of the launch.
        chosen: a block of each part.
    """
    parts = _three(run.at(one).plan().grid)
    grid = _three(run.at(dims).plan().grid)
    found: list[tuple[int, ...]] = []
    if max(parts) > 1:
        for strided in (True, False):
            blocks: set[int] = set()
            for block in chosen:
                x, rest = block % grid[0], block // grid[0]
                at = (x, rest % grid[1], rest // grid[1])
                axes = (
                    _along(i, n, k, strided=strided)
                    for i, n, k in zip(at, grid, parts, strict=True)
                )
                blocks.update(
                    i + grid[0] * (j + grid[1] * k) for i, j, k in itertools.product(*axes)
                )
                if len(blocks) > MOST:
                    break
            else:
                found.append(tuple(sorted(blocks)))
    yield from dict.fromkeys([*found, tuple(chosen)])


def _three(grid: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def _along(at: int, count: int, parts: int, *, strided: bool) -> range:
    """The blocks of one part along an axis, of which it has so many."""
    parts = min(parts, count)
    if strided:
        apart = max(1, count // parts)
        return range(at % apart, apart * parts, apart)
    first = at // parts * parts
    return range(first, min(first + parts, count))
