"""Whether a grid has blocks enough for the result, told from what a few of them write."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpulab.check.subject import Arrays
from gpulab.numerics import structure


def missing(
    got: Arrays, written: Callable[[Sequence[int]], Arrays], chosen: Sequence[int], count: int
) -> str:
    """That so many blocks cannot write a whole output even if all wrote as much as one does at
    most; empty where they can."""

    def sizes(outputs: Arrays) -> dict[str, int]:
        poison = structure.POISONS[0]
        return {n: int((~structure.poisoned(a, poison)).sum()) for n, a in outputs.items()}

    if all(n * count >= got[name].size * len(chosen) for name, n in sizes(got).items()):
        return ""
    each = [sizes(written((block,))) for block in chosen]
    for name, array in got.items():
        most = max(one[name] for one in each)
        if 0 < most * count < array.size:
            return (
                f"{count} blocks that write at most {most} elements of {name} each are too few for "
                f"its {array.size}"
            )
    return ""
