"""Offsets of elements that are formed in 32 bits, and so wrap where an array is large."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.emulator.ptx.nodes import Instr, Mem, Special
from gpulab.explain.flow import Flow, registers, space

_ADDRESS = frozenset(("add", "sub", "shl", "cvt", "mov", "selp", "cvta", "or", "mul", "mad"))
_IN_32_BITS = (("lo", "s32"), ("lo", "u32"))


def wrapping(flow: Flow) -> Iterator[int]:
    """Products of a block's number and a dim, in 32 bits, that are an access's offset.

    Followed back from the addresses of global memory; a factor by which such a product is
    multiplied further is taken to be 64 bits wide, as it is where it is not one of these.
    """
    seen: set[int] = set()
    for instr in flow.code:
        if space(instr) != "global" and instr.base != "cp":
            continue
        todo = [i for o in instr.operands if isinstance(o, Mem) for i in flow.makers(o)]
        while todo:
            i = todo.pop()
            if i in seen:
                continue
            seen.add(i)
            here = flow.code[i]
            factors = [o for o in here.operands[1:3] if registers(o)]
            if here.base in ("mul", "mad") and len(factors) == 2:
                if here.modifiers[-2:] in _IN_32_BITS and _of_a_block(flow, here):
                    yield i
            elif here.base in _ADDRESS:
                # What is taken away is a remainder's multiple: no more than it is taken from.
                last = 2 if here.base == "sub" else len(here.operands)
                todo += [j for o in here.operands[1:last] for j in flow.makers(o)]


def _of_a_block(flow: Flow, product: Instr) -> bool:
    """Whether a factor is made of the block's number and the other of a parameter."""
    sides = []
    for operand in product.operands[1:3]:
        near = [flow.code[i] for i in flow.back(flow.makers(operand))]
        specials = (o for each in near for o in each.operands if isinstance(o, Special))
        block = any("ctaid" in o.name for o in specials)
        sides.append((block, any(space(each) == "param" for each in near)))
    one, other = sides
    return (one[0] and other[1]) or (other[0] and one[1])
