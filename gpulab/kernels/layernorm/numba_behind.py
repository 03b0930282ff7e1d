"""LayerNorm in Numba of rows that are summed while the row before is written.

The counterpart of ``raw_kernels/layernorm/behind.cu``: every thread takes the moments of what it
has of a row, first the mean, then sums of what is left; those of threads and warps are merged.
Source: T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gpulab.kernels import numba_meeting
from gpulab.kernels.numba_columns import Columns
from gpulab.kernels.numba_function import NOTHING, Function, device, repeat
from gpulab.kernels.numba_reduce import FULL_WARP, sum_of_lanes
from gpulab.kernels.numba_row import Tools
from gpulab.kernels.numba_trail import Trail
from gpulab.kernels.row_shape import WARP


@lru_cache(maxsize=8)
def _merge(parts: int, lanes: int, even: bool) -> Function:
    """``merge(parts)``: so many (elements, mean, rest, squares) of each of so many lanes, about
    their common mean, which the sum of what is left corrects. ``even``: all have as many elements.
    """
    from numba import cuda

    number, share = np.float32(parts * lanes), np.float32(1.0 / (parts * lanes))
    zero, one, add, add_both = np.float32(0.0), np.float32(1.0), *_sums(lanes)

    @device
    def all_alike(given: Any) -> Any:
        mean, left, squares = zero, zero, zero
        for part in given:
            mean += part[1]
        mean = add(mean, NOTHING) * share
        for part in given:
            delta = (part[1] - mean) + part[2]
            left += delta
            squares += cuda.fma(delta * delta, part[0], part[3])
        left, squares = add_both((left, squares), NOTHING)
        total, rest = given[0][0] * number, left * share
        return total, mean, rest, cuda.fma(-rest * rest, total, squares)

    @device
    def unlike(given: Any) -> Any:
        total, mean, left, squares = zero, zero, zero, zero
        for part in given:
            total += part[0]
        total = add(total, NOTHING)
        each = zero if total == zero else one / total
        for part in given:
            mean += part[1] * (part[0] * each)
        mean = add(mean, NOTHING)
        for part in given:
            delta = (part[1] - mean) + part[2]
            left += delta * (part[0] * each)
            squares += cuda.fma(delta * delta, part[0], part[3])
        rest, squares = add_both((left, squares), NOTHING)
        return total, mean, rest, cuda.fma(-rest * rest, total, squares)

    return all_alike if even else unlike


@lru_cache(maxsize=8)
def _sums(lanes: int) -> tuple[Function, Function]:
    """Over so many lanes: of a value; of two, side by side."""
    from numba import cuda, uint32

    full = np.uint32(FULL_WARP)

    @device
    def both(values: Any, what: Any, i: Any) -> Any:
        a, b = values
        distance = uint32(1) << i
        return a + cuda.shfl_xor_sync(full, a, distance), b + cuda.shfl_xor_sync(full, b, distance)

    return sum_of_lanes()(lanes), repeat(lanes.bit_length() - 1, both)


def make(kit: Tools, rstd_of: Function, shrink: np.float32) -> Callable[..., Any]:
    """The kernel: x (rows, cols), weight, bias (cols,), y as stored codes, rows, cols, eps.

    Args:
        kit: device functions.
        rstd_of: (variance, eps, scale) of a row that was taken times scale.
        shrink: a row whose squares overflow is taken times this.
    """
    from numba import cuda, float32, uint32, uint64

    layout = kit.layout
    vec, even, parts = layout.vec, layout.fit == "kWhole", layout.parts
    zero, one, full = np.float32(0.0), np.float32(1.0), np.uint32(FULL_WARP)
    of_rows, two, places = np.uint32(numba_meeting.ROWS), np.uint32(2), numba_meeting.PLACES
    some = min(WARP, parts)
    of_warp, of_parts = _merge(1, WARP, even), _merge(parts // some, some, even)
    meet = numba_meeting.meetings(kit.warps, layout.cluster, of_parts)
    start, tell, hear = meet.begin, meet.tell, meet.hear
    step, most = np.uint32(layout.step), np.float32(layout.keep * vec)
    member, words = kit.member, 4 * places * parts
    put, narrow, store, values_of = kit.y.put, kit.y.narrow, kit.y.store, kit.y.values

    def passes(scale: np.float32) -> tuple[Function, Function]:
        """Over a row times ``scale``: sums, and sums of what is left without ``shift``."""

        @device
        def sum_up(state: Any, values: Any, at: Any, near: Any) -> Any:
            a, b, c, d = state
            for j in range(0, vec, 4):
                a += values[j] * scale
                b += values[j + 1] * scale
                c += values[j + 2] * scale
                d += values[j + 3] * scale
            return a, b, c, d

        @device
        def sum_left(state: Any, values: Any, at: Any, near: Any) -> Any:
            a, b, p, q, shift = state
            for j in range(0, vec, 2):
                d = cuda.fma(values[j], scale, -shift)
                e = cuda.fma(values[j + 1], scale, -shift)
                a += d
                b += e
                p = cuda.fma(d, d, p)
                q = cuda.fma(e, e, q)
            return a, b, p, q, shift

        return sum_up, sum_left

    @device
    def mine(packs: Any) -> Any:
        """How many elements this thread has, and what is each one's share."""
        if even:
            return most, one / most
        first = member()
        have = (packs - first - uint32(1)) // step + uint32(1) if first < packs else uint32(0)
        count = float32(have * uint32(vec))
        return count, zero if count == zero else one / count

    @device
    def mean_of(sums: Any, own: Any) -> Any:
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) * own[1]

    @device
    def moments(sums: Any, own: Any) -> Any:
        total = sums[0] + sums[1]
        rest = total * own[1]
        return of_warp(((own[0], sums[4], rest, cuda.fma(-rest, total, sums[2] + sums[3])),))

    @device
    def write(state: Any, values: Any, at: Any, near: Any) -> Any:
        y, scale, shift, rest, rstd = state
        factor, offset = values_of(near[0]), values_of(near[1])
        for j in range(vec):
            normal = cuda.fma(cuda.fma(values[j], scale, -shift), rstd, rest)
            values = put(values, j, cuda.fma(normal, factor[j], offset[j]))
        store(y, at, narrow(values))
        return state

    trail, columns = Trail(kit), Columns(kit, 2)
    (sum_up, sum_left), (sum_small, small_rest) = passes(one), passes(shrink)
    begin, following = trail.begin(), trail.following()
    filled, filled_left = trail.fill(sum_up), trail.slowly(sum_left)
    read, left = trail.first(sum_up), trail.again(sum_left)
    small, small_left = trail.slowly(sum_small), trail.slowly(small_rest)
    finish, given = trail.again(write, columns.near, last=True), columns.given
    none = NOTHING

    def layernorm_behind(
        x: Any, weight: Any, bias: Any, y: Any, rows: Any, cols: Any, eps: Any
    ) -> None:
        kept = cuda.shared.array(0, uint32, alignment=128)
        told = cuda.shared.array(words, float32, alignment=16)
        barriers = cuda.shared.array(places, uint64)
        start(barriers)
        here = begin(x, kept, rows, cols)
        own, share, again = mine(here[4]), one / float32(cols), uint32(0)
        if here[0] >= here[3]:
            return
        shift = mean_of(filled((zero, zero, zero, zero), x, here, kept), own)
        found = filled_left((zero, zero, zero, zero, shift), x, here, kept)
        tell(told, barriers, here[1], moments(found, own))
        parameters = given((weight, bias), here[4])
        coming = following(here)
        if coming[0] < coming[3]:
            shift = mean_of(filled((zero, zero, zero, zero), x, coming, kept), own)
            found = filled_left((zero, zero, zero, zero, shift), x, coming, kept)
            tell(told, barriers, coming[1], moments(found, own))
        while True:
            turn, scale = here[1], one
            state = hear(told, barriers, turn % of_rows, turn // of_rows % two)
            if cuda.any_sync(full, not (state[3] < float32(np.inf))):
                scale = shrink
                shift = mean_of(small((zero, zero, zero, zero), x, here, kept), own)
                found = small_left((zero, zero, zero, zero, shift), x, here, kept)
                place, parity = of_rows + again % two, again // two % two
                again = uint32(again + uint32(1))
                tell(told, barriers, place, moments(found, own))
                state = hear(told, barriers, place, parity)
            rstd = rstd_of(state[3] * share, eps, scale)
            finish((y, scale, state[1], -state[2] * rstd, rstd), x, here, kept, parameters)
            here = following(here)
            if here[0] >= here[3]:
                break
            coming = following(here)
            if coming[0] < coming[3]:
                shift = mean_of(read((zero, zero, zero, zero), x, coming, kept), own)
                found = left((zero, zero, zero, zero, shift), x, coming, kept, none)
                tell(told, barriers, coming[1] % of_rows, moments(found, own))

    return layernorm_behind
