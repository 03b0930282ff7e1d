"""Warp instructions and atomics on the card and on the emulated device."""

import numpy as np
import pytest
from equality import BLOCK, Family, Ins, check
from equality_inputs import (
    RANDOM,
    generator,
    integers,
    packed,
    pairs,
    random_codes,
)

pytestmark = pytest.mark.gpu

WARPS = 512
LANES = 32 * WARPS


def test_shuffles(devices):
    """Every mode, with lanes beyond the segment, segments of all widths, and the predicate."""
    rng = generator("shfl")
    a = random_codes(np.uint32, LANES, "shfl")
    by = rng.integers(0, 40, LANES).astype(np.uint32)
    by[: 32 * 64] = np.repeat(np.arange(64), 32)  # the same for the warp
    by[-64:] = random_codes(np.uint32, 64, "by")
    width = np.uint32(1) << rng.integers(0, 6, WARPS).astype(np.uint32)
    segment = (np.uint32(32) - width) << np.uint32(8)
    clamp = np.where(rng.random(WARPS) < 0.5, 31, 0).astype(np.uint32)
    any_clamp = rng.integers(0, 32, WARPS).astype(np.uint32)
    c = np.repeat(np.where(rng.random(WARPS) < 0.7, segment | clamp, segment | any_clamp), 32)
    c[-32 * 64 :] = random_codes(np.uint32, 32 * 64, "c")
    listed = []
    for mode in ("up", "down", "bfly", "idx"):
        name = f"shfl.sync.{mode}.b32"
        listed.append(Ins(name, f"{name} %0, %1, %2, %3, -1;"))
        listed.append(
            Ins(f"{name}|p", f".reg .pred p; .reg .b32 t; {name} t|p, %1, %2, %3, -1; "
                "selp.u32 %0, 1, 0, p;")
        )  # fmt: skip
    check(devices, Family("shfl", listed, [a, by, c], np.uint32))


def test_reductions_and_votes(devices):
    rng = generator("redux")
    a = integers(np.uint32, LANES, "redux")[:LANES]
    few = rng.integers(0, 3, LANES).astype(np.uint32)
    few[: 32 * 100] = np.repeat(rng.integers(0, 3, 100), 32)  # whole warps agree
    listed = []
    for op, kinds in (("add", "us"), ("min", "us"), ("max", "us"), ("and", "b"), ("or", "b"),
                      ("xor", "b")):  # fmt: skip
        for kind in kinds:
            name = f"redux.sync.{op}.{kind}32"
            listed.append(Ins(name, f"{name} %0, %1, -1;"))
    for form in ("all", "any", "uni"):
        listed.append(
            Ins(f"vote.sync.{form}", ".reg .pred p, q; setp.ne.u32 p, %2, 0; "
                f"vote.sync.{form}.pred q, p, -1; selp.u32 %0, 1, 0, q;")
        )  # fmt: skip
    listed += [
        Ins("vote.sync.ballot", ".reg .pred p; setp.eq.u32 p, %2, 1; "
            "vote.sync.ballot.b32 %0, p, -1;"),
        Ins("match.any.sync.b32", "match.any.sync.b32 %0, %2, -1;"),
        Ins("match.all.sync.b32", "match.all.sync.b32 %0, %2, -1;"),
        Ins("match.all.sync.b32 p", ".reg .pred p; .reg .b32 t; match.all.sync.b32 t|p, %2, -1; "
            "selp.u32 %0, 1, 0, p;"),
        Ins("activemask", "activemask.b32 %0;"),
        Ins("elect.sync", ".reg .pred p; .reg .b32 t; elect.sync t|p, -1; selp.u32 %0, 1, 0, p;"),
    ]  # fmt: skip
    check(devices, Family("redux, vote, match", listed, [a, few], np.uint32))


def test_reductions_of_part_of_a_warp(devices):
    """Lanes outside the mask skip the instruction."""
    rng = generator("members")
    a = integers(np.uint32, LANES, "members")[:LANES]
    few = rng.integers(0, 2, LANES).astype(np.uint32)
    members = np.repeat(random_codes(np.uint32, WARPS, "members") | np.uint32(1), 32)
    inside = ".reg .pred w; .reg .b32 l, b; mov.u32 l, %%laneid; shr.u32 b, %3, l; and.b32 b, b, "
    inside += "1; setp.ne.u32 w, b, 0; mov.b32 %0, 0; "
    listed = [
        Ins(f"redux.{op}, members", inside + f"@w redux.sync.{op} %0, %1, %3;")
        for op in ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32",
                   "or.b32", "xor.b32")
    ]  # fmt: skip
    listed += [
        Ins("vote.ballot, members", inside + ".reg .pred p; setp.ne.u32 p, %2, 0; "
            "@w vote.sync.ballot.b32 %0, p, %3;"),
        Ins("match.any, members", inside + "@w match.any.sync.b32 %0, %2, %3;"),
    ]  # fmt: skip
    check(devices, Family("redux, vote, match by members", listed, [a, few, members], np.uint32))


# -- atomics: one address a thread, so that their order does not matter ----------------------------


def atomic(base, operation, kind, inputs, shared):
    """The value found and the value left, of an atomic on a cell that holds %1.

    The cell is the place of the result in global memory, or the thread's own in shared memory.
    """
    bits = 16 if kind in ("f16", "bf16") else 32 if kind.endswith("x2") else int(kind[1:])
    space, size = ("shared" if shared else "global"), bits // 8
    opcode = f"{base}.{space}.{operation}.{kind}"
    values = ", ".join(f"%{i}" for i in range(2, inputs + 1))
    start = f".reg .b{bits} t; .reg .b64 q; mov.b64 q, %{inputs + 1}; "
    if shared:
        start = (
            f".shared .align 8 .b8 room[{BLOCK * size}]; .reg .b{bits} t; .reg .b32 q, l; "
            f"mov.u32 q, room; mov.u32 l, %%tid.x; mad.lo.u32 q, l, {size}, q; "
        )
    start += f"st.{space}.b{bits} [q], %1; membar.cta; "
    left = f"membar.cta; ld.{space}.b{bits} %0, [q];"
    if base == "red":
        return [Ins(f"{opcode} left", f"{start}{opcode} [q], {values}; {left}")]
    return [
        Ins(f"{opcode} found", f"{start}{opcode} %0, [q], {values};"),
        Ins(f"{opcode} left", f"{start}{opcode} t, [q], {values}; {left}"),
    ]


def check_atomics(devices, title, operations, inputs):
    """``inputs``: the cell and the operand (two of them for cas)."""
    listed = []
    for operation, kind in operations:
        bases = ("atom",) if operation in ("exch", "cas") else ("atom", "red")
        for base in bases:
            for shared in (False, True):
                listed += atomic(base, operation, kind, len(inputs), shared)
    check(devices, Family(title, listed, inputs, inputs[0].dtype, place=True))


@pytest.mark.parametrize("form", ["f32", "f64"])
def test_float_atomics(devices, form):
    """float32 sums flush subnormals in global memory and keep them in shared memory."""
    inputs = pairs(form, RANDOM // 4, "atom")
    check_atomics(devices, f"atom {form}", [("add", form)], inputs)


@pytest.mark.parametrize("form", ["f16", "bf16"])
def test_half_atomics(devices, form):
    two = pairs(form, RANDOM // 2, "atom")
    check_atomics(devices, f"atom {form}", [("add.noftz", form)], two)
    check_atomics(devices, f"atom {form}x2", [("add.noftz", f"{form}x2")], packed(*two))


@pytest.mark.parametrize("bits", [32, 64])
def test_integer_atomics(devices, bits):
    a = integers(f"u{bits // 8}", RANDOM // 2, "cell")
    b = generator("atom", bits).permutation(a)
    operations = [(op, f"{k}{bits}") for op in ("min", "max") for k in "us"]
    operations += [("add", f"u{bits}"), ("exch", f"b{bits}")]
    operations += [(op, f"b{bits}") for op in ("and", "or", "xor")]
    operations += [("inc", "u32"), ("dec", "u32"), ("add", "s32")] * (bits == 32)
    check_atomics(devices, f"atom integers {bits}", operations, [a, b])
    expected = np.where(generator("cas", bits).random(a.size) < 0.5, a, b)
    check_atomics(devices, f"atom.cas {bits}", [("cas", f"b{bits}")], [a, expected, b])
