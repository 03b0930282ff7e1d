"""One PTX instruction on arrays: a kernel around it is written, run on the machine, read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.machine import Machine

Array = NDArray[Any]
BLOCK = 64
_WIDTH = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "pred": 1}


def kernel(body: str, sources: Sequence[str], result: str, target: str = "sm_90") -> str:
    """PTX that loads %a0.. (widths b16, b32, b64) by thread, runs ``body`` and stores %d.

    A ``pred`` source is a byte that is not zero, a ``pred`` result is stored as 0 or 1.
    """
    lines = [
        ".version 8.7", f".target {target}", ".address_size 64",
        ".visible .entry one(.param .u64 out, .param .u32 n, "
        + ", ".join(f".param .u64 in{i}" for i in range(len(sources))) + ")",
        "{", ".reg .b64 %p<20>, %i;", ".reg .b32 %t<8>, %tmp<8>;",
        ".reg .b16 %h;", ".reg .pred %q, %c<4>;",
    ]  # fmt: skip
    for i, width in enumerate(sources):
        lines.append(f".reg .{width} %a{i};")
    lines.append(f".reg .{result} %d;")
    lines += [
        "mov.u32 %t0, %tid.x;", "mov.u32 %t1, %ctaid.x;", f"mad.lo.u32 %t2, %t1, {BLOCK}, %t0;",
        "ld.param.u32 %t3, [n];", "setp.ge.u32 %q, %t2, %t3;", "@%q bra DONE;",
        "ld.param.u64 %p0, [out];",
    ]  # fmt: skip
    for i, width in enumerate(sources):
        lines += [
            f"ld.param.u64 %p{i + 1}, [in{i}];",
            f"mad.wide.u32 %p{i + 1}, %t2, {_WIDTH[width]}, %p{i + 1};",
        ]
        if width == "pred":
            lines += [f"ld.global.u8 %h, [%p{i + 1}];", f"setp.ne.u16 %a{i}, %h, 0;"]
        else:
            lines.append(f"ld.global.{width} %a{i}, [%p{i + 1}];")
    lines += [body, f"mad.wide.u32 %p0, %t2, {_WIDTH[result]}, %p0;"]
    if result == "pred":
        lines += ["selp.u16 %h, 1, 0, %d;", "st.global.u8 [%p0], %h;"]
    else:
        lines.append(f"st.global.{result} [%p0], %d;")
    return "\n".join([*lines, "DONE: ret;", "}"])


def run(
    body: str,
    inputs: Sequence[Array],
    result: type[np.generic] | Any,
    *,
    capability: tuple[int, int] = (9, 0),
) -> Array:
    """The result of ``body`` for each element of the inputs (equal lengths; bool = predicate)."""
    inputs = [np.ascontiguousarray(x) for x in inputs]
    widths = ["pred" if x.dtype.kind == "b" else f"b{8 * x.itemsize}" for x in inputs]
    out_type = np.dtype(result)
    width = "pred" if out_type.kind == "b" else f"b{8 * out_type.itemsize}"
    machine = Machine(capability)
    count = len(inputs[0])
    addresses = []
    for i, x in enumerate(inputs):
        addresses.append(machine.alloc(x.nbytes, f"in{i}"))
        machine.write(addresses[-1], x)
    out = machine.alloc(count * max(out_type.itemsize, 1), "out")
    program = machine.load(kernel(body, widths, width))
    params = [np.uint64(out).tobytes(), np.uint32(count).tobytes()]
    params += [np.uint64(a).tobytes() for a in addresses]
    machine.launch(program, "one", (-(-count // BLOCK),), (BLOCK,), params)
    return machine.read(out, count * out_type.itemsize).view(out_type)


def instruction(
    opcode: str, inputs: Sequence[Array], result: Any, *literals: int, **options: Any
) -> Array:
    """``run`` of ``opcode %d, %a0, %a1, ..., literals``."""
    operands = [f"%a{i}" for i in range(len(inputs))] + [str(x) for x in literals]
    return run(f"{opcode} %d, {', '.join(operands)};", inputs, result, **options)


def integers(rng: np.random.Generator, kind: Any, count: int) -> Array:
    """Random bits of an integer type, mixed with small values and the ends of the range."""
    dtype = np.dtype(kind)
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype).copy()
    info = np.iinfo(dtype)
    special = [0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 2]
    where = rng.random(count)
    raw[where < 0.2] = rng.integers(0, 64, int((where < 0.2).sum())).astype(dtype)
    chosen = where > 0.8
    raw[chosen] = rng.choice(np.array(special, dtype), int(chosen.sum()))
    return raw


def floats(rng: np.random.Generator, bits: int, count: int) -> Array:
    """Random bit patterns and values near one, with specials, subnormals, ends of the range."""
    kind, raw = {
        16: (np.float16, np.uint16),
        32: (np.float32, np.uint32),
        64: (np.float64, np.uint64),
    }[bits]
    info = np.finfo(kind)
    x = rng.integers(0, 256, count * bits // 8, dtype=np.uint8).view(raw).copy()
    near = rng.standard_normal(count).astype(kind).view(raw)
    grid = (rng.integers(-64, 64, count) / 8).astype(kind).view(raw)
    special = np.array(
        [0.0, -0.0, 1, -1, 2, 0.5, 1.5, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny,
         info.smallest_subnormal, -info.smallest_subnormal, 3 * info.smallest_subnormal,
         info.tiny - info.smallest_subnormal, 1 + info.eps, 1 - info.epsneg],
        kind,
    ).view(raw)  # fmt: skip
    where = rng.random(count)
    x = np.where(where < 0.35, near, x)
    x = np.where((where > 0.35) & (where < 0.6), grid, x)
    return np.where(where > 0.85, rng.choice(special, count), x).astype(raw).view(kind)
