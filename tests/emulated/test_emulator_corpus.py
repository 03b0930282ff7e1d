"""A corpus of CUDA C++ features, compiled for every capability and run, against NumPy.

The compilers of 7.5 to 10.0 and of 12.0 differ (typed and untyped registers, inlining, unrolling),
so each kernel runs on one of each and is loaded for all.
"""

from __future__ import annotations

import numpy as np
import pytest
from corpus_cases import CASES, N
from cudacase import ptx, run

from gpulab.arch import EMULATED
from gpulab.emulator.machine import Machine

RUN_ON = ((7, 5), (9, 0), (12, 0))
"""`make test` runs a feature on two of these, in turns."""


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        pytest.param(
            name,
            c,
            id=f"{name}-{c[0]}.{c[1]}",
            marks=[pytest.mark.whole] if (at + number) % 3 == 2 else [],
        )
        for at, name in enumerate(CASES)
        for number, c in enumerate(RUN_ON)
    ],
)
def test_feature(name: str, capability: tuple[int, int]) -> None:
    case = CASES[name]
    if capability < case.lowest:
        pytest.skip("the header has no such function below 8.0")
    arguments = case.arguments(np.random.default_rng(len(name)))
    result = run(case.source, arguments, grid=(N // 64,), block=(64,), capability=capability)
    got = result.arrays[-1]
    with np.errstate(all="ignore"):
        want = case.want(*arguments)
    if case.tolerance:
        assert np.allclose(got, want, rtol=case.tolerance, atol=case.tolerance)
    else:
        assert got.tolist() == np.asarray(want, got.dtype).tolist()


NEIGHBOURS = ((8, 6), (8, 9), (10, 0))
"""NVRTC gives them the code of 8.0 and of 12.0 here, 8.9 but for fp8: for `make test-whole`."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "capability",
    [pytest.param(c, marks=[pytest.mark.whole] if c in NEIGHBOURS else []) for c in EMULATED],
    ids=lambda c: f"{c[0]}.{c[1]}",
)
def test_everything_loads(capability: tuple[int, int]) -> None:
    for case in (c for c in CASES.values() if c.lowest <= capability):
        assert Machine(capability).load(ptx(case.source, capability)).entries
