"""What a submission's PTX says about it: entry, parameters, tensor cores, atomics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpulab.errors import BuildError
from gpulab.exercises.base import Exercise
from gpulab.numerics import tensorcore
from gpulab.numerics.contract import Contract
from gpulab.registry import Capability

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", re.DOTALL)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.ptr[\s\w.]*?)?\s+[\w$]+(\[\d+\])?"
)
_MMA = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?((?:mma|wmma\.mma|wgmma\.mma_async)\.[\w.:]+)", re.MULTILINE
)
_ATOMIC_ADD = re.compile(r"\b(?:atom|red)(?:\.\w+)*\.add(?:\.noftz)?\.(?:f|bf)\d+")
_MEETING = re.compile(r"\b(?:atom|red)\.(?!\S*shared)|\bld\.volatile\.(?!shared)|\.acquire\b")
_COUNTING = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?(?:atom\.[\w.]+\s+(?P<result>%\w+)\s*,|red\.[\w.]+)\s*"
    r"\[(?P<address>%\w+)\]\s*,",
    re.MULTILINE,
)
_NAME = re.compile(r"%?[\w$]+")
_HEAP = re.compile(r"^\s*malloc\s*,", re.MULTILINE)
_VARIABLE = re.compile(
    r"^\s*(?:\.(?:visible|weak|extern|common)\s+)?\.global\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)",
    re.MULTILINE,
)
_WORD = re.compile(r"[\w$]+")
_HALF = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?((?:add|sub|mul|fma|div|ex2|tanh)(?:\.\w+)*\.b?f16(?:x2)?)\s",
    re.MULTILINE,
)
_DROPPED = {"aligned", "row", "col", "satfinite"}
_WGMMA_DROPPED = {"mma_async", "sync"}
_PTX_TYPE = {"fp16": "f16", "bf16": "bf16", "e4m3": "e4m3", "e5m2": "e5m2", "fp32": "tf32"}
_OWN = {
    "fp16": "mma.sync.m16n8k16.f32.f16.f16.f32",
    "bf16": "mma.sync.m16n8k16.f32.bf16.bf16.f32",
    "e4m3": "mma.sync.m16n8k32.f32.e4m3.e4m3.f32",
    "fp32": "mma.sync.m16n8k8.f32.tf32.tf32.f32",
}
_WMMA_AS = {
    "bf16": "mma.sync.m16n8k16.f32.bf16.bf16.f32",
    "tf32": "mma.sync.m16n8k8.f32.tf32.tf32.f32",
}


def entries(ptx: str) -> dict[str, list[str]]:
    """The kernels of a PTX text and their parameters' types (``u64``, ``u32``, ``b8[16]``)."""
    found = {}
    for match in _ENTRY.finditer(ptx):
        found[match[1]] = [m[1] + (m[2] or "") for m in _PARAM.finditer(match[2])]
    return found


def check_entry(ptx: str, exercise: Exercise, name: str) -> None:
    """The C symbol is there and takes what the exercise passes.

    Raises:
        BuildError: another name or another parameter list.
    """
    found = entries(ptx)
    if exercise.entry not in found:
        raise BuildError(
            f'{name}: the kernel {exercise.entry} is not declared extern "C"',
            fix=f"declare it as\n    {exercise.signature}",
            file=name,
        )
    taken = [_bits(t) for t in found[exercise.entry]]
    wanted = [64 if p.role in ("in", "out") else 8 * p.dtype.itemsize for p in exercise.params]
    if taken != wanted:
        raise wrong_signature(exercise, name)


def check_heap(ptx: str, name: str) -> None:
    """No memory of the device's heap is asked for: it would outlive the launch.

    Raises:
        BuildError: the code calls malloc, or new.
    """
    if _HEAP.search(ptx) is not None:
        raise BuildError(
            f"{name}: the kernel allocates memory (malloc or new)",
            fix="use registers, arrays of a fixed size or shared memory",
            file=name,
        )


def wrong_signature(exercise: Exercise, name: str) -> BuildError:
    """The error for another parameter list."""
    return BuildError(
        f"{name}: {exercise.entry} has another parameter list than the exercise",
        fix=f"declare it as\n    {exercise.signature}",
        file=name,
    )


def _bits(ptx_type: str) -> int:
    if (match := re.fullmatch(r"[usbf](\d+)", ptx_type)) is not None:
        return int(match[1])
    return -1


def tensor_instructions(ptx: str, capability: Capability) -> list[str]:
    """Distinct tensor-core instructions in the spelling of ``numerics.tensorcore``.

    A wmma product is given as the mma.sync that a capability does it with.
    """
    found = []
    depth = 16 if capability >= (8, 0) else 8
    for match in _MMA.finditer(ptx):
        parts = [p for p in match[1].split(".") if p and p not in _DROPPED]
        if parts[0] == "wmma":
            types = [p for p in parts if re.fullmatch(r"bf16|tf32|f16|f32|s8|u8|s32", p)]
            known = next((_WMMA_AS[t] for t in types if t in _WMMA_AS), None)
            sums = "f16" if types and types[0] == "f16" else "f32"
            found.append(known or f"mma.sync.m16n8k{depth}.{sums}.f16.f16.{sums}")
        elif parts[0] == "wgmma":
            found.append(".".join(["wgmma", *(p for p in parts[1:] if p not in _WGMMA_DROPPED)]))
        else:
            found.append(".".join(parts))
    return list(dict.fromkeys(found))


def adds_atomically(ptx: str) -> bool:
    """Whether floats are added by atomics, so that two runs may differ in the last bits."""
    return _ATOMIC_ADD.search(ptx) is not None


def variables(ptx: str) -> tuple[str, ...]:
    """Variables of the module in global memory that its code names: a launch may leave data there.

    C++ headers leave constants behind that no instruction names.
    """
    names = [match[1] for match in _VARIABLE.finditer(ptx)]
    words = Counter(_WORD.findall(ptx))
    return tuple(name for name in names if words[name] > 1)


def meets(ptx: str) -> bool:
    """Whether blocks may wait for each other or share results: atomics or volatile global reads.

    Atomics of which no thread of a launch can see anything are none.
    """
    code = "\n".join(line for line in ptx.splitlines() if not line.lstrip().startswith("//"))
    meetings = sum(_MEETING.search(line) is not None for line in code.splitlines())
    return meetings > _unseen(code)


def _unseen(ptx: str) -> int:
    """How many atomics are on variables that nothing else names, their results not used."""
    words = Counter(_NAME.findall(ptx))
    addresses = Counter(
        found["address"]
        for found in _COUNTING.finditer(ptx)
        if found["result"] is None or words[found["result"]] == 1
    )
    own = variables(ptx)
    unseen = 0
    for address, count in addresses.items():
        given = re.findall(rf"^\s*mov\.u64\s+{address}\s*,\s*([\w$]+)\s*;", ptx, re.MULTILINE)
        # Its declaration and one move name the variable; the move and atomics name the address.
        if len(given) == 1 and given[0] in own and words[given[0]] == 2:
            unseen += count if words[address] == 1 + count else 0
    return unseen


def arithmetic(ptx: str, instructions: Sequence[str]) -> str:
    """Where the products are formed and whether anything is computed in half, in words.

    Args:
        ptx: the text.
        instructions: its tensor-core instructions.
    """
    where = f"tensor cores ({', '.join(instructions)})" if instructions else "CUDA cores"
    half = dict.fromkeys(match[1] for match in _HALF.finditer(ptx))
    narrow = f"some in half ({', '.join(half)})" if half else "none in half"
    return f"arithmetic on {where}, {narrow}"


_NARROW = {
    "fp16": re.compile(
        r"^[^/\n]*\b(?:add|sub|mul|fma|ex2|cvt)(?:\.\w+)*?\.f16(?:x2)?\b", re.MULTILINE
    ),
    "bf16": re.compile(
        r"^[^/\n]*\b(?:add|sub|mul|fma|ex2|cvt)(?:\.\w+)*?\.bf16(?:x2)?\b", re.MULTILINE
    ),
}


def narrow_formats(ptx: str) -> tuple[str, ...]:
    """16-bit formats that the code computes in or converts to or from."""
    return tuple(name for name, pattern in _NARROW.items() if pattern.search(ptx))


def loosest(
    instructions: Sequence[str], fmt: str, output: str, capability: Capability, k: int
) -> str | None:
    """Of the instructions used, the one whose float32 accumulation may be off most.

    An instruction on other operands than the exercise's (codes that the kernel widened first) is
    judged by the bound of the exercise format's own instruction. None where there is none that the
    arithmetic model knows.
    """
    best: tuple[float, str] | None = None
    if fmt == "fp32":  # tensor cores read tf32, which is no float32 product
        return None
    for name in instructions:
        own = name if f".{_PTX_TYPE[fmt]}." in f"{name}." else _OWN.get(fmt, name)
        contract = Contract(fmt, "fp16", output, own, capability).of_operation()
        if contract.instruction is None:
            continue
        if not tensorcore.is_modelled(contract.instruction, capability):
            continue
        allowed = contract.allowance(k).relative
        if best is None or allowed > best[0]:
            best = (allowed, contract.instruction)
    return None if best is None else best[1]
