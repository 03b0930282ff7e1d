"""The planted bugs are found, named and placed; their correct twins run clean and right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "bugs"))

import corpus
from corpus import Case

from gpulab.errors import FaultError, GpulabError, KernelTimeoutError

BUGS = [case for case in corpus.cases() if case.fault]
TWINS = [case for case in corpus.cases() if not case.fault]
SPIN_BUDGET = 20_000


CAPABILITIES = ((8, 9), (12, 0))
"""NVRTC has one front end up to sm_90 and another one from sm_100."""


def found(
    case: Case, *, sanitize: bool, capability: tuple[int, int] = CAPABILITIES[0]
) -> GpulabError | None:
    budget = SPIN_BUDGET if case.fault == "timeout" else None
    try:
        corpus.emulate(case, sanitize=sanitize, budget=budget, capability=capability)
    except (FaultError, KernelTimeoutError) as error:
        return error
    return None


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.label)
def test_bug_is_found_with_its_kind_and_line(case: Case, capability: tuple[int, int]) -> None:
    error = found(case, sanitize=True, capability=capability)
    assert error is not None, "nothing was found"
    told = error.details
    kind = "timeout" if isinstance(error, KernelTimeoutError) else told["fault"]
    lines = case.lines(kind)
    assert kind == case.fault
    assert Path(told["file"]) == case.source
    assert told["line"] in lines
    assert case.source.name in error.message
    assert str(told["line"]) in error.message
    if kind == "race":
        assert Path(told["other_file"]) == case.source
        assert told["other_line"] in lines
        assert f"{case.source.name}:{told['other_line']}" in error.message
        assert (told["thread"], told["block"]) != (told["other_thread"], told["other_block"])
        _plausible(told["other_thread"], case.block)
        _plausible(told["other_block"], case.grid)
    if kind != "timeout":
        assert error.exit_code == 6
        _plausible(told["thread"], case.block)
        _plausible(told["block"], case.grid)


def _plausible(index: tuple[int, ...], extent: tuple[int, ...]) -> None:
    assert len(index) == 3
    assert all(0 <= i < n for i, n in zip(index, extent, strict=True))


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.label)
def test_only_races_need_the_sanitizer(case: Case) -> None:
    error = found(case, sanitize=False)
    assert (error is None) == (case.fault == "race")


def _in(case: Case, position: int) -> NDArray[Any]:
    return corpus.values(case.args[position])


def _sums(x: NDArray[Any], width: int) -> NDArray[Any]:
    return x.reshape(-1, width).sum(axis=1)


def _matmul(case: Case) -> list[NDArray[Any]]:
    a, b = (_in(case, i).reshape(32, 32).astype(np.float64) for i in (0, 1))
    return [(a @ b).ravel()]


def _neighbours(case: Case) -> list[NDArray[Any]]:
    x = _in(case, 0)
    return [0.5 * (x + np.append(x[1:], 0))]


def _window(case: Case) -> list[NDArray[Any]]:
    return [_in(case, 0).reshape(-1)[np.add.outer(np.arange(4) * 65536, np.arange(64)).ravel()]]


def _history(case: Case) -> list[NDArray[Any]]:
    x = _in(case, 0).reshape(32, 96)
    t = np.arange(32)
    x[t, 3 * t] = -1
    return [x[:, ::3].sum(axis=1)]


def _steps(case: Case) -> list[NDArray[Any]]:
    return [np.append(_in(case, 0), np.zeros(16)).reshape(2, 64).sum(axis=0)]


WANTED: dict[str, Callable[[Case], list[NDArray[Any]]]] = {
    "matmul_no_first_barrier_ok": _matmul,
    "matmul_no_second_barrier_ok": _matmul,
    "store_off_by_one_ok": lambda c: [_in(c, 0) + 1],
    "shared_overflow_ok": lambda c: [np.diff(_in(c, 0), append=0)],
    "copy_no_wait_ok": lambda c: [_in(c, 0)[::-1]],
    "uninitialised_shared_ok": lambda c: [_sums(_in(c, 0), 64)],
    "uninitialised_global_ok": lambda c: [_in(c, 0), _in(c, 0)],
    "index_overflow_ok": _window,
    "misaligned_vector_ok": lambda c: [_sums(_in(c, 0)[:128], 4)],
    "missing_syncwarp_ok": lambda c: [_sums(_in(c, 0), 32)],
    "blocks_in_place_ok": _neighbours,
    "histogram_no_atomics_ok": lambda c: [np.bincount(_in(c, 0), minlength=16)],
    "histogram_read_early_ok": lambda c: [np.bincount(_in(c, 0), minlength=16)],
    "double_buffer_ok": lambda c: [_in(c, 0).reshape(-1, 64)[:, ::-1].ravel()],
    "mbarrier_no_wait_ok": lambda c: [_in(c, 0)[::-1]],
    "local_overflow_ok": _history,
    "spin_forever_ok": lambda c: [np.ones(32)],
    "trap_on_negative_ok": lambda c: [np.sqrt(np.abs(_in(c, 0)))],
    "assert_fails_ok": lambda c: [np.sqrt(np.abs(_in(c, 0)))],
    "no_tail_guard_ok": lambda c: [2 * _in(c, 0)],
    "missing_fence_ok": lambda c: [_sums(_in(c, 0), 32), _in(c, 0).sum(keepdims=True)],
    "same_value_ok": lambda c: [np.ones(1)],
    "shuffle_order_ok": lambda c: [np.zeros(32)],
    "vote_order_ok": lambda c: [np.full(32, 62.0)],
    "marks_read_early_ok": lambda c: [np.ones(16)],
    "barrier_in_loop_ok": _steps,
    "syncwarp_foreign_mask_ok": lambda c: [np.r_[np.tile(_in(c, 0)[:16], 2), np.zeros(16)]],
}


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("case", TWINS, ids=lambda case: case.label)
def test_twin_runs_clean_and_right(case: Case, capability: tuple[int, int]) -> None:
    outputs = corpus.emulate(case, sanitize=True, capability=capability)
    if case.label not in WANTED:  # half of its output stays unwritten
        assert case.label == "divergent_barrier_ok"
        return
    for got, want in zip(outputs, WANTED[case.label](case), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_the_corpus_is_whole() -> None:
    assert {case.label for case in corpus.cases()} == {p.stem for p in corpus.HERE.glob("*.cu")}
    assert len(BUGS) >= 20
    for case in BUGS:
        assert case.lines(case.fault), f"{case.label} marks no line"
        assert bool(case.reason) == (not case.tool or bool(case.control))
        if case.control:
            control = corpus.get(case.control)
            # The same kind, or one that the tool sorts under it (a wrong member mask).
            kinds = {
                case.fault: {case.fault},
                "barrier_divergence": {case.fault, "warp_divergence"},
            }
            assert control.fault in kinds[case.fault]
            assert control.tool == case.tool
            assert not control.control
    assert not any(case.lines() for case in TWINS)


def test_the_page_shows_what_is_said_today() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
    import update_faults

    text = update_faults.PAGE.read_text()
    assert update_faults.page(text) == text, "run scripts/update_faults.py"
