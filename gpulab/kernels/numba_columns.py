"""Parameters of the columns in the Numba row kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.kernels.numba_function import collect, device
from gpulab.kernels.numba_row import Tools


class Columns:
    """Parameters of the columns, which come from L2, or stay in a thread's registers.

    Args:
        kit: device functions.
        arrays: how many parameters.
    """

    def __init__(self, kit: Tools, arrays: int) -> None:
        from numba import uint32, uint64

        layout, load, member = kit.layout, kit.y.load, kit.member
        step, size = np.uint32(layout.step), np.uint32(layout.batch * layout.step)

        @device
        def one(what: Any, k: Any) -> Any:
            parameters, at = what
            return load(parameters[k], uint64(at))

        every = collect(arrays, one)
        if not layout.holds:

            @device
            def given(parameters: Any, packs: Any) -> Any:
                return parameters

            @device
            def near(parameters: Any, i: Any, j: Any, at: Any) -> Any:
                return every((parameters, at))

            self.given, self.near = given, near
            return

        @device
        def of_pack(what: Any, j: Any) -> Any:
            parameters, at, packs = what
            return every((parameters, min(uint32(at + j * step), uint32(packs - uint32(1)))))

        batch = collect(layout.batch, of_pack)

        @device
        def of_batch(what: Any, i: Any) -> Any:
            parameters, packs = what
            return batch((parameters, uint32(member() + i * size), packs))

        batches = collect(layout.batches, of_batch)

        @device
        def held(parameters: Any, packs: Any) -> Any:
            return batches((parameters, packs))

        @device
        def recall(held: Any, i: Any, j: Any, at: Any) -> Any:
            return held[i][j]

        self.given, self.near = held, recall
