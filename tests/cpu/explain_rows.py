"""Rows of the lab by name, and their analysis, for the tests of explanations."""

from __future__ import annotations

from gpulab import registry
from gpulab.explain import names, report
from gpulab.ops import formulas
from gpulab.registry import Case

ADA = (8, 9)
ROWS = [Case(spec, v) for spec in registry.specs() for v in spec.variants]


def label(case):
    return f"{case.spec.op} {case.label}"


def row(op, name, fmt, backend="raw", **wanted):
    return names.find(f"{backend}/{name}", names.Wanted(op, fmt, **wanted))


def analysed(case, capability=ADA):
    lines = formulas.of(case.spec.op, case.variant, capability)
    return report.analyse(case, capability, lines)
