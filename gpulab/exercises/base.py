"""What an exercise is: a kernel to write, the shapes it is judged at, and the texts around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from gpulab.errors import UsageError
from gpulab.ops.base import Effort
from gpulab.registry import Capability, Param, Variant

FILES = Path(__file__).resolve().parent / "files"
Language = Literal["cu", "py"]
LANGUAGES: Mapping[str, Language] = {"cu": "cu", "cuda": "cu", "numba": "py", "py": "py"}

CPP = {
    "fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16", "e4m3": "__nv_fp8_e4m3",
    "int32": "int", "int8": "signed char",
}  # fmt: skip
_HEADERS = {"fp16": "cuda_fp16.h", "bf16": "cuda_bf16.h", "e4m3": "cuda_fp8.h"}


@dataclass(frozen=True)
class Shape:
    """Dims at which a submission is judged.

    Args:
        dims: by name.
        why: what only this shape shows.
        families: input families.
        effort: ``full`` adds every probe of the operation, non-finite inputs among them.
        counted: memory traffic is counted here, beside the starter's.
        once: one launch is looked at, and all that is looked at elsewhere only where that is wrong.
    """

    dims: Mapping[str, int]
    why: str
    families: tuple[str, ...]
    effort: Effort = "quick"
    counted: bool = False
    once: bool = False


UNFORESEEN = 72
"""Largest dim of the case that nobody can know beforehand."""


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Args:
        name: ``fp16-matmul``.
        order: place in the course.
        title: one line.
        op: operation of the lab that judges it.
        variant: the row that a right solution is, on CUDA cores.
        params: the kernel's exact parameter list.
        shapes: where it is judged, the first one tiny; one has effort ``full``, one is ``counted``.
        timed: the dims that are timed on a card, which are judged too.
        statement: what to do.
        submit: what to hand in.
        hints: from a nudge to nearly the answer.
        tensor_cores: ``required`` or ``allowed``.
        shared_tiles: the exercise is to use shared memory.
        most_reads: times that the inputs may be read from global memory, where that is the point.
        min_capability: the lowest that can run it.
        entry: the kernel's name.
        unforeseen: dims of a case that nobody can know beforehand; None: each dim 2 .. 72.
        longest: one with more terms than the size that is timed, where memory of a fixed size ends.
            In halves it is over 1 KiB longer than twice that size: a card rounds a block's shared
            memory up, by up to 255 bytes, and a store into what that adds is no fault.
        baseline: the exercise whose solution is the float32 kernel that this one starts from.
        cpp: C++ spelling of a parameter's element type where it is not the format's own.
    """

    name: str
    order: int
    title: str
    op: str
    variant: Variant
    params: tuple[Param, ...]
    shapes: tuple[Shape, ...]
    timed: Mapping[str, int]
    statement: str
    submit: str
    hints: tuple[str, ...]
    tensor_cores: Literal["required", "allowed"] = "allowed"
    shared_tiles: bool = False
    most_reads: int | None = None
    min_capability: Capability = (7, 5)
    entry: str = "matmul"
    unforeseen: Callable[[np.random.Generator], Mapping[str, int]] | None = None
    longest: Shape | None = None
    baseline: str | None = None
    cpp: Mapping[str, str] = field(default_factory=dict)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names that launch expressions may use."""
        return tuple(p.name for p in self.params if p.role == "dim")

    def draw(self, rng: np.random.Generator) -> Mapping[str, int]:
        """Dims of the case that nobody can know beforehand."""
        if self.unforeseen is not None:
            return self.unforeseen(rng)
        return {name: int(rng.integers(2, UNFORESEEN + 1)) for name in self.dims}

    def shape(self, use: Literal["full", "counted"]) -> Shape:
        """The shape with every probe, or the one at which traffic is counted."""
        return next(s for s in self.shapes if (s.effort == "full" if use == "full" else s.counted))

    def type_of(self, param: Param) -> str:
        """The C++ type of a parameter."""
        if param.role == "dim":
            return "int"
        element = self.cpp.get(param.name) or CPP[param.format]
        if param.role == "scalar":
            return element
        return f"const {element}*" if param.role == "in" else f"{element}*"

    @property
    def headers(self) -> tuple[str, ...]:
        """CUDA headers that the signature needs."""
        used = [
            _HEADERS[p.format]
            for p in self.params
            if p.format in _HEADERS and p.name not in self.cpp
        ]
        return tuple(dict.fromkeys(used))

    @property
    def signature(self) -> str:
        """The kernel's declaration in CUDA C++."""
        listed = ", ".join(f"{self.type_of(p)} {p.name}".replace("* ", "* ") for p in self.params)
        return f'extern "C" __global__ void {self.entry}({listed})'

    @property
    def python_signature(self) -> str:
        """The kernel's declaration in Numba."""
        return f"@cuda.jit\ndef {self.entry}({', '.join(p.name for p in self.params)}):"

    @property
    def contract_check(self) -> str:
        """CUDA C++ to append to a submission: refuses another parameter list."""
        includes = "".join(f"#include <{h}>\n" for h in self.headers)
        types = ", ".join(self.type_of(p) for p in self.params)
        return (
            f'\n\n#line 1 "the exercise\'s signature"\n{includes}'
            "namespace gpulab_contract {\n"
            "template <typename A, typename B> struct same { enum { value = 0 }; };\n"
            "template <typename A> struct same<A, A> { enum { value = 1 }; };\n}\n"
            f"static_assert(gpulab_contract::same<decltype(&{self.entry}), void (*)({types})>"
            '::value, "gpulab: another parameter list than the exercise\'s");\n'
        )

    def file(self, kind: Literal["starter", "solution"], language: Language) -> Path:
        """The starter or the reference solution in a language (Python is no module of ours)."""
        return FILES / self.name / f"{kind}.{'cu' if language == 'cu' else 'numba'}"


def language(name: str) -> Language:
    """``cu`` or ``py`` from what a user may write.

    Raises:
        UsageError: neither.
    """
    if name not in LANGUAGES:
        raise UsageError(f"no language {name!r}", fix="choose cu or numba")
    return LANGUAGES[name]


DimsOf = Callable[[str], tuple[str, ...]]
