"""Functions of Numba kernels: each is compiled once, and LLVM puts it where it is called.

Numba's own inlining copies a function's statements into its caller, where all of them are typed
again: with it the row kernels compile five times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Function = Callable[..., Any]

NOTHING = np.uint32(0)
"""Where a function has nothing to get."""


def device(function: Function) -> Function:
    """A function that kernels and other such functions call."""
    from numba import cuda

    compiled: Function = cuda.jit(device=True, forceinline=True, lineinfo=True)(function)
    return compiled


def repeat(count: int, body: Function, before: Sequence[Function] = ()) -> Function:
    """A loop without a branch: ``run(state, what)``.

    Args:
        count: of turns.
        body: (state, what, number of the turn) -> the next state.
        before: functions of nothing, called before each turn.
    """
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def run(typing_context: Any, state: Any, what: Any) -> Any:
        given = [(state, what, types.uint32)]
        after = _signature(typing_context, body, given[0]).return_type if count else state
        if after != state:  # a constant became a number
            given.append((after, what, types.uint32))
            _signature(typing_context, body, given[1])

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            now = values[0]
            for number in range(count):
                if before:
                    _call(context, builder, typing_context, before[number], (), ())
                arguments = (now, values[1], ir.Constant(ir.IntType(32), number))
                kinds = given[min(number, len(given) - 1)]
                now = _call(context, builder, typing_context, body, kinds, arguments)
            return now

        return after(state, what), generate

    function: Function = run
    return function


def collect(count: int, get: Function) -> Function:
    """``run(what)``: the tuple of ``get(what, number)`` for all numbers below ``count``."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def run(typing_context: Any, what: Any) -> Any:
        kinds = (what, types.uint32)
        each = _signature(typing_context, get, kinds).return_type

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            numbers = [ir.Constant(ir.IntType(32), i) for i in range(count)]
            found = [
                _call(context, builder, typing_context, get, kinds, (values[0], number))
                for number in numbers
            ]
            return context.make_tuple(builder, signature.return_type, found)

        return types.UniTuple(each, count)(what), generate

    function: Function = run
    return function


def _signature(typing_context: Any, function: Function, kinds: Sequence[Any]) -> Any:
    """Of a function with arguments of such types, which is compiled for them."""
    return typing_context.resolve_value_type(function).get_call_type(typing_context, kinds, {})


def _call(
    context: Any,
    builder: Any,
    typing_context: Any,
    function: Function,
    kinds: Sequence[Any],
    values: Sequence[Any],
) -> Any:
    signature = _signature(typing_context, function, kinds)
    kind = typing_context.resolve_value_type(function)
    implementation = context.get_function(kind, signature)
    context.add_linking_libs(getattr(implementation, "libs", ()))
    return implementation(builder, values)
