"""What a page has room for, and what it says about names."""

import io
import sys

import pytest
from rich.console import Console

from gpulab import exercises
from gpulab.check import excerpt, page
from gpulab.cli.options import page_width

HEAD = """// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
#include <cuda_fp16.h>
"""
PARAMS = "(const __half* a, const __half* b, float* c, int m, int n, int k)"
LAUNCH = 'LAUNCH = {"exercise": "fp16-matmul", "block": "16,16", "grid": "ceil(n/16),ceil(m/16)"}\n'


def kernel(body, name="matmul"):
    return f'{HEAD}extern "C" __global__ void {name}{PARAMS} {{\n{body}\n}}\n'


def screen(record, width=100, **kind):
    out = io.StringIO()
    page.print_page(Console(file=out, width=width, **kind), record)
    return out.getvalue()


ON_ONE_LINE = "float s = " + " + ".join(f"undefined_{i}" for i in range(30)) + ";"
ON_MANY = "\n".join(f"float s{i} = undefined_{i};" for i in range(30))
WARNED = "\n".join(f"int unused_{i};" for i in range(30))


@pytest.mark.parametrize("body", [ON_ONE_LINE, ON_MANY, f"{WARNED}\n{ON_MANY}"])
@pytest.mark.parametrize("width", [60, 100])
def test_many_errors_are_one_screen_and_are_counted(body, width, submitted):
    record = submitted(kernel(body)).to_json()
    lines = screen(record, width).splitlines()
    assert len(lines) <= page.SCREEN, lines
    assert max(map(len, lines)) <= width
    shown = [line for line in lines if "error: " in line]
    assert "undefined_0" in shown[0]
    assert len(shown) >= 5
    assert f"    ... and {30 - len(shown)} more errors" in lines


def test_an_error_of_a_template_is_shown_whole_and_the_next_ones_are_counted(submitted):
    template = (
        "template <class T> __device__ float f(T x) { return x.value + x->next + x.other; }\n"
    )
    calls = "c[0] = f(m) + f(1.0f) + f(a) + f(1.0);"
    text = kernel(calls).replace('extern "C"', template + 'extern "C"')
    lines = screen(submitted(text).to_json()).splitlines()
    assert len(lines) <= page.SCREEN
    at = next(i for i, line in enumerate(lines) if "more errors" in line)
    assert "detected during instantiation" in lines[at - 1]


def test_a_few_errors_are_shown_whole():
    log = "k.cu(3): error: no x\n  x;\nk.cu(4): warning #1: odd\n"

    def lines(*arguments):
        return list(map(str, excerpt.excerpt(*arguments)))

    assert lines(log, 1, 80, 3) == log.splitlines()
    assert lines(log, 2, 80, 4)[-1] == "... and 1 more error"
    assert lines(log, 1, 12, 3)[0] == "k.cu(3): er…"
    assert lines("a\nb\nc\nd", 0, 80, 3) == ["a", "b", "... and more"]


def test_a_page_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert page_width() == 100
    monkeypatch.setenv("COLUMNS", "90")
    assert page_width() == 90


def test_a_table_leaves_names_whole():
    name = "a_long_name_of_a_submission_of_a_learner_of_a_course.cu"
    gates = {"contract_gate": {"fraction": 0.123456}, "arithmetic_gate": {"fraction": 1234.56}}
    record = {"exercise": "cross-entropy", "verdict": "FAIL", **gates}
    record["diagnosis"] = {"slug": "lost-digits"}
    records = [record | {"file": f"folder/{part}/{name}"} for part in ("one", "two")]
    for terminal in (True, False):
        out = io.StringIO()
        page.print_table(Console(file=out, width=100, force_terminal=terminal), records)
        assert f"one/{name}" in out.getvalue()
        assert ("arith frac" in out.getvalue()) is not terminal


def test_a_kernel_of_another_name_is_named(submitted):
    bounded = kernel("c[0] = 1;", "mine").replace(
        "void mine", "void __launch_bounds__(256, 2) mine"
    )
    shown = screen(submitted("// __global__ void no(\n" + bounded).to_json())
    assert "there is no kernel matmul; it has mine\n" in shown
    assert "parameter list" not in shown
    assert f"    {exercises.get('fp16-matmul').signature}\n" in shown


def test_an_error_of_ones_own_is_told_before_a_name_that_it_has_left_undefined(submitted):
    shown = screen(submitted(kernel("c[0] = undefined_name;", "mine")).to_json())
    told = shown.partition("(fp16-matmul)")[2]
    assert "undefined_name" in told.split("\n")[1]


@pytest.mark.skipif(sys.platform != "linux", reason="workers are processes")
@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (
            "from numba import cuda, float16\n",
            "cannot import name",
            "numba.cuda.types import float16",
        ),
        ("from numba import nothing\n", "cannot import name", "the standard library alone"),
        (
            "from numba import cuda\n@cuda.jit\ndef mine(a):\n    a[0] = 1\n",
            "there is no kernel matmul; it has mine",
            "def matmul(a, b, c, m, n, k):",
        ),
    ],
)
def test_names_of_numba(text, message, fix, submitted):
    shown = screen(submitted(LAUNCH + text, "kernel.py", trusted=True).to_json())
    assert message in shown
    assert fix in shown
    assert "site-packages" not in shown


def test_attention_is_shown_with_its_own_dims():
    from click.testing import CliRunner

    from gpulab.cli.exercise import show

    out = CliRunner().invoke(show, ["attention"], standalone_mode=False).output
    assert "batch=1 heads=1 seq_q=1 seq_k=1 head_dim=1 causal=0: one element" in out
    assert "planes" not in out


def test_statements_say_what_is_judged():
    assert "NaN among the scores" in exercises.get("attention").statement
    assert "maximum of the row first" in exercises.get("cross-entropy").statement
