"""PTX in Numba kernels: what all intrinsics of the row kernels are written with."""

from __future__ import annotations

from typing import Any

from gpulab.kernels.numba_function import Function


def address(context: Any, builder: Any, array: Any, place: Any, nbytes: int, space: int = 0) -> Any:
    """The 64-bit address of an (array, number of a piece), of pieces of ``nbytes``.

    Args:
        context: Numba's, of an intrinsic.
        builder: likewise.
        array: its Numba type.
        place: (array, 64-bit number), as LLVM values.
        nbytes: of a piece.
        space: 3 for shared memory, 0 for a generic address.
    """
    from llvmlite import ir

    data = context.make_array(array)(context, builder, place[0]).data
    piece = ir.ArrayType(ir.IntType(8), nbytes)
    at = builder.gep(builder.bitcast(data, piece.as_pointer()), [place[1]])
    if space:
        at = builder.addrspacecast(at, piece.as_pointer(space))
    return builder.ptrtoint(at, ir.IntType(64))


def shared_address(context: Any, builder: Any, array: Any, place: Any, nbytes: int) -> Any:
    """As ``address`` in shared memory, in 32 bits."""
    from llvmlite import ir

    at = address(context, builder, array, place, nbytes, 3)
    return builder.trunc(at, ir.IntType(32))


def emit(builder: Any, text: str, values: list[Any], *, together: bool = False) -> None:
    """PTX that reads 32- or 64-bit integers and orders the accesses to memory around it.

    Args:
        builder: Numba's, of an intrinsic.
        text: operands are ``$0`` and so on.
        values: the operands.
        together: the threads of a warp run it together, so that it stays where it is.
    """
    from llvmlite import ir

    form = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    constraints = ["l" if value.type.width == 64 else "r" for value in values]
    code = ir.InlineAsm(form, text, ",".join([*constraints, "~{memory}"]), side_effect=True)
    builder.call(code, values, attrs=("convergent",) if together else ())


def instruction(text: str, *, together: bool = False) -> Function:
    """A device function of no arguments that is this PTX (``together``: see ``emit``)."""
    from numba import types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def run(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            emit(builder, text, [], together=together)
            return context.get_dummy_value()

        return types.void(), generate

    function: Function = run
    return function
