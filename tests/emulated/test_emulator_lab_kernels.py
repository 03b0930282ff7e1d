"""Every kernel of the lab, compiled for every capability: no instruction is without an emulation.
(`make test` samples it, see IN_TURNS and NUMBA; `make test-whole` leaves nothing out.)

A kernel with an instruction that is not implemented fails here by its name and line, before any
user meets it. The instantiations of one source are compiled together, which reads the headers once;
a function is loaded if it has a form of instruction that was not loaded before for its capability.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gpulab import registry
from gpulab.arch import EMULATED
from gpulab.emulator.machine import Machine
from gpulab.errors import BuildError
from gpulab.registry import Capability, RawBuild
from gpulab.runtime import assembly, cache, nvrtc, sources, toolkit
from gpulab.runtime.numba_ptx import compile_numba

SIZE, UNALIGNED = 64, 33
"""Rows of a matrix that are aligned, for every capability, and rows that are not."""
LONG = (9000, 1 << 17)
"""Rows for all threads of a block, copied ahead or kept in shared memory, and for a cluster. What
is new in them does not depend on the formats: one variant of each kernel has these sizes too, for
9.0; tests/emulated/test_rows.py runs long rows for 7.5, and odd ones of every format for 8.9."""
LEAST, MOST, OTHER = EACH_KIND = ((7, 5), (9, 0), (12, 0))
"""The least code, the most, and the other front end's."""
IN_TURNS = tuple(c for c in EMULATED if c not in EACH_KIND)
"""For one of these, the least and the other front end, `make test` compiles a part of a source."""
PART, PART_OF_MOST = 12, 4
"""Every twelfth instantiation; of the most capable every fourth."""
ASSEMBLED = ((7, 5), (9, 0))
"""Where tests/cpu/test_kernels_compile.py assembles every row of matmul and attention, at the first
two sizes, lessons for 9.0 alone and at the first. What it leaves in the cache is used."""
ASSEMBLED_ROWS = {((7, 5), UNALIGNED), ((9, 0), SIZE)}
"""Where it assembles row operations."""
OPS = sorted({spec.op for spec in registry.specs()})
CASES = [case for op in OPS for case in registry.cases(op) if case.spec.build is not None]


class Source(NamedTuple):
    """What one compilation takes, the capability apart."""

    file: str
    defines: tuple[str, ...]
    contract: bool
    feature_target: bool


def dims(case: registry.Case, size: int) -> dict[str, int]:
    """A size for every dim that the kernel's parameters name; several rows of a row operation."""
    params = case.spec.params(case.variant)
    names = {p.name for p in params if p.role == "dim"} | {d for p in params for d in p.dims}
    return {name: 3 if name == "rows" else size for name in names}


def runs_on(case: registry.Case) -> list[Capability]:
    return [c for c in EMULATED if not case.refusal(c, "emulated")]


def sizes(case: registry.Case, capability: Capability) -> Iterator[int]:
    yield SIZE
    has_rows = "cols" in dims(case, SIZE)
    is_first = case.variant is case.spec.variants[0]
    if capability == (7, 5) or (capability == (9, 0) and (is_first or not has_rows)):
        yield UNALIGNED
    if capability == (9, 0) and is_first and has_rows:
        yield from LONG


def is_assembled_elsewhere(case: registry.Case, capability: Capability, size: int) -> bool:
    if "cols" in dims(case, SIZE):
        return (capability, size) in ASSEMBLED_ROWS
    if case.variant.lesson:
        return capability == ASSEMBLED[-1] and size == SIZE
    return capability in ASSEMBLED


def raw_builds() -> Iterator[tuple[registry.Case, Capability, int, RawBuild]]:
    for case in CASES:
        for capability in runs_on(case):
            for size in sizes(case, capability):
                assert case.spec.build is not None
                build = case.spec.build(case.variant, capability, dims(case, size))
                if isinstance(build, RawBuild):
                    yield case, capability, size, build


def by_source() -> dict[Source, dict[Capability, dict[str, registry.Case | None]]]:
    """Entries of each source and capability; with a case where another test assembles the entry."""
    found: dict[Source, dict[Capability, dict[str, registry.Case | None]]] = {}
    for case, capability, size, build in raw_builds():
        source = Source(build.source, build.defines, build.contract, build.feature_target)
        shared = case if is_assembled_elsewhere(case, capability, size) else None
        found.setdefault(source, {}).setdefault(capability, {}).setdefault(build.entry, shared)
    return found


SOURCES = by_source()


def compiled(source: Source, capability: Capability, entries: Iterable[str]) -> str:
    """One PTX of several instantiations."""
    kit, path = toolkit.default(), sources.resolve(source.file)
    target = nvrtc.target_name(kit, capability, source.feature_target).replace("sm_", "compute_")
    chosen = nvrtc.options(kit, target, defines=source.defines, contract=source.contract)
    with nvrtc._Program(kit, sources.read(path), str(path)) as program:
        for entry in entries:
            program.check("AddNameExpression", program.handle, entry.encode())
        assert program.compile(chosen), program.log
        return program.read("PTX").rstrip(b"\0").decode()


def forms(function: str) -> frozenset[str]:
    """Its statements without its name, registers and literals: what decides what emulates them."""
    named = re.search(r"\.(?:entry|func) (?:\([^)]*\) )?(\w+)", function)
    function = function.replace(named[1], "self") if named else function
    kept = "\n".join(x for x in function.split("\n") if not x.startswith(("\t.loc", "\t//")))
    kept = re.sub(r"(%[a-z]+|\$L__BB|_cudapy_smem_|__local_depot)\d[\w<>]*", r"\1", kept)
    kept = re.sub(r"\b(?:0[fFdDxX][0-9a-fA-F]+|\d+)\b", "0", kept)
    return frozenset(statement.strip() for statement in re.split("[;\n]", kept))


class Loader:
    """Loads PTX of one kernel after another: every function with a form that is new."""

    def __init__(self) -> None:
        self.seen: dict[Capability, set[str]] = {}
        self.forms = lru_cache(maxsize=None)(forms)

    def load(self, ptx: str, capability: Capability) -> int:
        """The number of entries that were loaded.

        Raises:
            BuildError: names the instruction that is missing.
        """
        seen = self.seen.setdefault(capability, set())
        body, mark, files = ptx.partition("\n\t.file")
        kept, loaded = [], 0
        for part in re.split(r"\n(?=(?:\.\w+ )?\.(?:entry|func) )", body):
            is_entry = re.match(r"(\.\w+ )?\.entry ", part) is not None
            if not is_entry:
                kept.append(part)
            elif not (found := self.forms(part)) <= seen:
                kept.append(part)
                seen |= found
                loaded += 1
        if loaded:
            Machine(capability).load("\n".join(kept) + mark + files)
        return loaded


LOADER = Loader()


def load_source(source: Source, capabilities: Iterable[Capability], every: int = 1) -> None:
    for capability in capabilities:
        entries = dict(list(SOURCES[source][capability].items())[::every])
        together = [entry for entry, case in entries.items() if case is None]
        if together:
            LOADER.load(compiled(source, capability, together), capability)
        for entry, case in entries.items():
            if case is not None:
                build = RawBuild(
                    source.file, entry, source.defines, source.feature_target, source.contract
                )
                code = assembly.prepare(build, case.spec.params(case.variant), capability)
                LOADER.load(code.ptx, capability)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: "-".join((s.file, *s.defines)))
def test_no_instruction_of_a_source_is_missing(source: Source) -> None:
    turns, number = [c for c in IN_TURNS if c in SOURCES[source]], list(SOURCES).index(source)
    mine = turns[number % len(turns)] if turns else None
    first = MOST if MOST in SOURCES[source] else LEAST
    taken = (mine, (LEAST, OTHER)[number % 2])
    others = [c for c in SOURCES[source] if c in taken and c != first]
    if source.file.startswith("lessons/"):  # the instructions of their twins
        others = others[:1]
    load_source(source, [first], PART_OF_MOST)
    load_source(source, others, PART)


@pytest.mark.whole
@pytest.mark.parametrize("source", SOURCES, ids=lambda s: "-".join((s.file, *s.defines)))
def test_no_instruction_of_a_source_is_missing_anywhere(source: Source) -> None:
    load_source(source, SOURCES[source])


NUMBA = [case for case in CASES if case.spec.backend == "numba"]
"""tests/emulated/test_equals_card.py loads and runs every third format, for 9.0 or less."""


def name(case: registry.Case) -> str:
    variant = case.variant
    words = (case.spec.op, case.spec.name, variant.format, variant.accumulator)
    return "-".join((*words, variant.output, variant.contract)).rstrip("-")


def in_turns(cases: Iterable[registry.Case]) -> Iterator[tuple[registry.Case, Capability]]:
    """One format of each kernel, for the least capability or the other front end's. `make test`
    takes every other kernel."""
    kernels: dict[tuple[str, str], list[registry.Case]] = {}
    for case in cases:
        kernels.setdefault((case.spec.op, case.spec.name), []).append(case)
    for number, formats in enumerate(kernels.values()):
        yield formats[number % len(formats)], EACH_KIND[0] if number % 2 else EACH_KIND[2]


def load_numba(case: registry.Case, capabilities: Iterable[Capability]) -> None:
    """At rows that are aligned, the wider accesses; what Numba lowers serves all capabilities."""
    for capability in capabilities:
        assert case.spec.build is not None
        build = case.spec.build(case.variant, capability, dims(case, SIZE))
        assert isinstance(build, registry.NumbaBuild)
        params = case.spec.params(case.variant)
        ptx = compile_numba(build, params, capability, store=cache.default_store()).ptx
        LOADER.load(ptx, capability)


@pytest.mark.parametrize("turn", list(in_turns(NUMBA))[::2], ids=lambda turn: name(turn[0]))
def test_no_instruction_of_a_numba_kernel_is_missing(
    turn: tuple[registry.Case, Capability],
) -> None:
    load_numba(turn[0], [turn[1]])


@pytest.mark.whole
@pytest.mark.parametrize("case", NUMBA, ids=name)
def test_no_instruction_of_a_numba_kernel_is_missing_anywhere(case: registry.Case) -> None:
    load_numba(case, runs_on(case))


def test_every_kernel_is_loaded_for_every_capability_that_runs_it() -> None:
    entries = {(s, c, e) for s, by in SOURCES.items() for c, es in by.items() for e in es}
    for _, capability, _, build in raw_builds():
        source = Source(build.source, build.defines, build.contract, build.feature_target)
        assert (source, capability, build.entry) in entries
    raw = {case.spec.name for case in CASES if case.spec.backend == "raw" and runs_on(case)}
    assert {case.spec.name for case, *_ in raw_builds()} == raw
    assert {case.spec.backend for case in CASES} == {"raw", "numba"}


@pytest.mark.parametrize("capability", EMULATED, ids=lambda c: f"{c[0]}.{c[1]}")
@pytest.mark.parametrize("op", OPS)
def test_every_op_runs_on_every_capability(op: str, capability: Capability) -> None:
    assert any(case.spec.op == op and capability in runs_on(case) for case in CASES)


def test_a_missing_instruction_is_named_also_behind_what_is_known(tmp_path: Path) -> None:
    file = tmp_path / "sine.cu"
    file.write_text(
        "template <int kKind> __global__ void wave(float* x) {\n"
        "  if (kKind < 2) *x += kKind;\n"
        '  else asm volatile("sin.approx.f32 %0, %0;" : "+f"(*x));\n'
        "}\n"
    )
    source, loader = Source(str(file), (), False, False), Loader()
    assert loader.load(compiled(source, (8, 0), ["wave<1>"]), (8, 0)) == 1
    assert loader.load(compiled(source, (8, 0), ["wave<1>"]), (8, 0)) == 0
    assert loader.load(compiled(source, (8, 0), ["wave<1>"]), (8, 9)) == 1  # another arithmetic
    with pytest.raises(BuildError, match=r"sin\.approx\.f32.*sine\.cu:3"):
        loader.load(compiled(source, (8, 9), ["wave<0>", "wave<1>", "wave<2>"]), (8, 9))


def test_literals_and_registers_make_no_form_but_every_word_does() -> None:
    assert forms("\tadd.f32 %f1, %f2, 0f3F800000;\n\t.loc 1 2 3") == forms(
        "\tadd.f32 %f7, %f1, 0f1;"
    )
    assert forms("ld.u32 %r1, [%rd2+16];") == forms("ld.u32 %r9, [%rd1+4];")
    assert forms("mma.m16n8k16 {%r1};") != forms("mma.m16n8k8 {%r1};")
    assert forms("mov.u32 %r1, %tid.x;") != forms("mov.u32 %r1, %tid.y;")
    assert forms("add.f32 %f1, %f2, %f3;") != forms("add.ftz.f32 %f1, %f2, %f3;")
