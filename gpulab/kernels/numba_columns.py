"""Parameters of the columns in the Numba row kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gpulab.kernels.numba_function import Function, collect, device
from gpulab.kernels.numba_row import Tools


class Columns:
    """Parameters of the columns, which come from L2, or stay in a thread's registers.

    Args:
        kit: device functions.
        arrays: how many parameters.
    """

    def __init__(self, kit: Tools, arrays: int) -> None:
        from numba import uint64

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

        whole = layout.fit == "kWhole"

        @device
        def of_pack(what: Any, j: Any) -> Any:
            parameters, at, packs = what
            at = at + j * step
            return every((parameters, at if whole else min(at, uint64(packs) - uint64(1))))

        batch = collect(layout.batch, of_pack)

        @device
        def of_batch(what: Any, i: Any) -> Any:
            parameters, packs = what
            return batch((parameters, uint64(member()) + i * size, packs))

        batches, packed = collect(layout.batches, of_batch), _packed()

        @device
        def held(parameters: Any, packs: Any) -> Any:
            return batches((parameters, packs))

        @device
        def recall(held: Any, i: Any, j: Any, at: Any) -> Any:
            return packed(held[i][j])

        self.given, self.near = held, recall


@lru_cache(maxsize=1)
def _packed() -> Function:
    """The words of packs, of which the compiler does not know that they are the same for each row:
    it would else keep all their values, in twice as many registers."""
    from llvmlite import ir
    from numba.extending import intrinsic

    i32 = ir.IntType(32)

    @intrinsic  # type: ignore[untyped-decorator]
    def packed(typing_context: Any, packs: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            code = ir.InlineAsm(ir.FunctionType(i32, [i32]), "", "=r,0", side_effect=True)
            given = values[0]
            for k in range(packs.count):
                for i in range(packs.dtype.count):
                    word = builder.call(code, [builder.extract_value(given, [k, i])])
                    given = builder.insert_value(given, word, [k, i])
            return given

        return packs(packs), generate

    function: Function = packed
    return function
