"""Every kernel of the lab, compiled for every capability: no instruction is without an emulation.

A kernel with an instruction that is not implemented fails here by its name and line, before any
user meets it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpulab import registry
from gpulab.arch import EMULATED
from gpulab.emulator.machine import Machine
from gpulab.runtime import assembly, cache, nvrtc
from gpulab.runtime.numba_ptx import compile_numba

SIZE = 64
ASSEMBLED_ELSEWHERE = ("matmul", "attention")
"""Operations whose kernels another test assembles for every capability: they share a cache."""
OPS = sorted({spec.op for spec in registry.specs()})
CASES = [case for op in OPS for case in registry.cases(op) if case.spec.build is not None]


def name(case: registry.Case) -> str:
    variant = case.variant
    words = (case.spec.op, case.spec.backend, case.spec.name, variant.format, variant.accumulator)
    return "-".join((*words, variant.output, variant.contract)).rstrip("-")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name(case) for case in CASES])
def test_the_kernel_loads(number: int) -> None:
    """Kernels without an instruction of one capability, and lessons: on the first, the last and one
    between them, which take turns; steps on the way to other kernels, on the first and the last."""
    everywhere = _runs_on(CASES[number])
    if CASES[number].spec.op in ASSEMBLED_ELSEWHERE and not CASES[number].variant.lesson:
        load(CASES[number], everywhere)
    elif CASES[number].spec.study:
        load(CASES[number], {everywhere[0], everywhere[-1]})
    else:
        between = everywhere[1:-1]
        load(CASES[number], {everywhere[0], between[number % len(between)], everywhere[-1]})


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_kernel_loads_wherever_it_runs(case: registry.Case) -> None:
    load(case, _runs_on(case))


def load(case: registry.Case, capabilities: Iterable[tuple[int, int]]) -> None:
    """What Numba lowers for one capability serves the others; of equal code one is loaded."""
    loaded = set()
    for capability in capabilities:
        ptx = _ptx(case, capability)
        code = "\n".join(x for x in ptx.splitlines() if not x.startswith((".target", "//")))
        if code not in loaded:
            Machine(capability).load(ptx)  # BuildError names what is missing
        loaded.add(code)


@pytest.mark.parametrize("capability", EMULATED, ids=lambda c: f"{c[0]}.{c[1]}")
@pytest.mark.parametrize("op", OPS)
def test_every_op_runs_on_every_capability(op: str, capability: tuple[int, int]) -> None:
    assert any(case.spec.op == op and capability in _runs_on(case) for case in CASES)


def _runs_on(case: registry.Case) -> list[tuple[int, int]]:
    return [c for c in EMULATED if not case.refusal(c, "emulated")]


def _ptx(case: registry.Case, capability: tuple[int, int]) -> str:
    """What the lab would run, not assembled: ptxas' part is another test's."""
    assert case.spec.build is not None
    build = case.spec.build(case.variant, capability, _dims(case))
    params = case.spec.params(case.variant)
    if isinstance(build, registry.NumbaBuild):
        return compile_numba(build, params, capability, store=cache.default_store()).ptx
    if case.spec.op in ASSEMBLED_ELSEWHERE:
        return assembly.prepare(build, params, capability).ptx
    return nvrtc.compile_ptx(
        build.source, build.entry, capability, defines=build.defines, contract=build.contract
    ).ptx


def _dims(case: registry.Case) -> dict[str, int]:
    """A size for every dim that the kernel's parameters name."""
    params = case.spec.params(case.variant)
    named = {p.name for p in params if p.role == "dim"}
    return dict.fromkeys(named | {d for p in params for d in p.dims}, SIZE)
