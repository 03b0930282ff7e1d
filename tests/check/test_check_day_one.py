"""What a learner's first files get: one screen that says what to do next."""

import io

import pytest
from rich.console import Console

from gpulab.check import page, sandbox, token

HEAD = """// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
#include <cuda_fp16.h>
"""
SIGNATURE = (
    'extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, '
    "int m, int n, int k)"
)
BODY = """{
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row < m && column < n) {
        float sum = 0.0f;
        for (int t = 0; t < k; ++t) {
            sum += __half2float(a[row * k + t]) * __half2float(b[t * n + column]);
        }
        c[row * n + column] = sum;
    }
}
"""
GOOD = HEAD + SIGNATURE + BODY


def edited(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


CASES = {
    "missing guard": (edited("row < m && column < n", "true"), 6, "out-of-bounds", "guard"),
    "half accumulator": (
        edited("float sum = 0.0f", "__half sum = 0.0f")
        .replace("sum +=", "sum = __half(float(sum) +")
        .replace("column]);", "column]));"),
        1,
        "half-accumulator",
        "float",
    ),
    "barrier in a branch": (
        edited("        float sum", "        __syncthreads();\n        float sum"),
        6,
        "barrier-divergence",
        "out of the branch",
    ),
    "swapped m and n": (
        edited("row < m && column < n", "row < n && column < m"),
        6,
        "out-of-bounds",
        "guard",
    ),
    'missing extern "C"': (edited('extern "C" ', ""), 4, "does-not-compile", 'extern "C"'),
    "wrong signature": (
        edited("int m, int n, int k)", "int n)").replace(
            "    int row", "    int m = n, k = n, row"
        ),
        4,
        "does-not-compile",
        "int m, int n, int k",
    ),
    "float pointers": (
        edited("const __half* a", "const float* a").replace("__half2float(a[row * k + t])", "a[0]"),
        4,
        "does-not-compile",
        "const __half* a",
    ),
    "another name": (edited("void matmul(", "void my_kernel("), 4, "does-not-compile", "matmul"),
    "infinite loop": (edited("++t)", "t += 0)"), 5, "timeout", "loop"),
    "10 GB of shared memory": (edited("shared=0", "shared=10*1000*1000*1000"), 2, "launch", ""),
    "10 GB of static shared memory": (
        edited("    int row", "    __shared__ float tile[50000][50000];\n    int row").replace(
            "float sum = 0.0f", "tile[row][0] = n; float sum = tile[0][0]"
        ),
        4,
        "does-not-compile",
        "ptxas for sm_89: Entry function 'matmul'",
    ),
    "too many threads": (edited("block=16,16", "block=64,64"), 2, "launch", ""),
    "empty kernel": (HEAD + SIGNATURE + " {}\n", 1, "unwritten", "store"),
    "printf flood": (
        edited(
            "        c[",
            '        for (int i = 0; i < 9; ++i) printf("%f\\n", sum);\n        c[',
        ).replace("c[row * n + column] = sum", "c[row * n + column] = 0.0f"),
        1,
        "zeros",
        "",
    ),
    "endless printf": (
        edited("        c[", '        for (;;) printf("again and again\\n");\n        c['),
        5,
        "timeout",
        "",
    ),
    "a syntax error": (
        edited("float sum = 0.0f;", "float sum = 0.0f"),
        4,
        "does-not-compile",
        "next: correct the first line",
    ),
    "stdio": ("#include <stdio.h>\n" + GOOD, 4, "does-not-compile", "printf needs no include"),
    "a whole program": (
        GOOD + "int main() { float* c; cudaMalloc(&c, 64); matmul<<<1, 1>>>(0, 0, c, 1, 1, 1); }\n",
        4,
        "does-not-compile",
        "without main()",
    ),
    "iostream": ("#include <iostream>\n" + GOOD, 4, "does-not-compile", "the kernel alone"),
    "malloc": (
        edited("float sum = 0.0f", "float* p = (float*)malloc(4); *p = 0; float sum = *p"),
        4,
        "does-not-compile",
        "shared memory",
    ),
    "no half header": (
        edited("#include <cuda_fp16.h>\n", ""),
        4,
        "does-not-compile",
        "cuda_fp16.h",
    ),
    "no header": (SIGNATURE + BODY, 2, "usage", "// gpulab: exercise="),
    "unknown exercise": (edited("fp16-matmul", "fp17-matmul"), 2, "usage", "fp16-matmul"),
    "a slip in the grid": (edited("ceil(n/16),", "ceil(N/16),"), 2, "usage", "did you mean n?"),
    "a file of 10 MB": (GOOD + "//" + "x" * 10_000_000, 2, "usage", "source of the kernel"),
    "a binary file": (b"\x7fELF\x00\x01" + bytes(100), 2, "usage", "source text"),
    "another encoding": ("// gr\u00fc\u00dfe".encode("latin-1"), 2, "usage", "UTF-8"),
    "an empty file": ("", 2, "usage", "// gpulab: exercise="),
}


def screen(result):
    out = io.StringIO()
    page.print_page(Console(file=out, width=100), result.to_json())
    return out.getvalue()


@pytest.mark.parametrize("name", CASES)
def test_one_screen_that_says_what_to_do(name, submitted):
    text, code, slug, hint = CASES[name]
    result = submitted(text)
    assert result.verdict == "FAIL", result.stages
    assert result.exit_code == code, (result.reason, result.diagnosis)
    assert result.diagnosis.slug == slug, result.diagnosis
    shown = screen(result)
    assert len(shown.splitlines()) <= page.SCREEN
    assert hint in shown
    assert "Traceback" not in shown
    assert "ptxas info" not in shown
    assert "next: " in shown


def test_a_device_that_cannot_run_the_exercise_gives_no_verdict(submitted):
    result = submitted(GOOD.replace("fp16-matmul", "fp16-mma"), capability=(7, 5))
    assert (result.verdict, result.exit_code) == ("INCONCLUSIVE", 2)
    assert "--capability 8.0" in screen(result)


def test_an_instruction_that_is_not_emulated_gives_no_verdict(submitted):
    line = 'asm volatile("vadd4.u32.u32.u32 %0, %1, %1, %1;" : "=r"(x) : "r"(m));'
    text = edited("        float sum", f"        int x; {line}\n        float sum")
    result = submitted(text)
    assert (result.verdict, result.exit_code) == ("INCONCLUSIVE", 3)
    assert result.diagnosis.slug == "not-emulated"
    assert "vadd4" in screen(result)
    assert "on a card" in screen(result)


def test_headers_that_include_others_can_be_included(submitted):
    more = ("mma.h", "cooperative_groups.h", "cooperative_groups/reduce.h", "cuda_pipeline.h")
    text = "".join(f"#include <{name}>\n" for name in more) + GOOD
    one = token.Token("fp16-matmul", 20240611, dict.fromkeys("mnk", 1), "emulated", (8, 9))
    assert submitted(text, only=one).verdict == "PASS"


def test_the_good_one_is_good(submitted):
    result = submitted(GOOD)
    assert result.verdict == "PASS"
    assert "PASS" in screen(result)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("def matmul(:\n", "kernel.py:1:"),
        ("import numba\n", "LAUNCH"),
        ('LAUNCH = {"exercise": "fp16-matmul", "block": TILE, "grid": "1"}', "not a literal"),
        ('LAUNCH = dict(exercise="fp16-matmul")', "literal dictionary"),
        ('LAUNCH = {"exercise": "fp16-matmul", "block": "16,16", "grid": "n/16"}', "ceil(a/b)"),
    ],
)
def test_python_files_are_read_without_running_them(text, hint, submitted):
    result = submitted(text, "kernel.py")
    assert (result.verdict, result.exit_code) == ("FAIL", 2)
    assert hint in screen(result)


@pytest.mark.skipif(sandbox.refusal() is not None, reason="Python cannot be confined here")
def test_a_python_error_names_the_learners_line_and_no_place_of_ours(submitted):
    launch = 'LAUNCH = {"exercise": "fp16-matmul", "block": "16,16", "grid": "1"}\n'
    kernel = "@cuda.jit\ndef matmul(a, b, c, m, n, k):\n    c[0, 0] = total\n"
    result = submitted("from numba import cuda\n" + launch + kernel, "kernel.py", isolated=True)
    shown = screen(result)
    assert result.exit_code == 4
    assert "does-not-compile: kernel.py:3: NameError: name 'total' is not defined" in shown
    assert "next: correct the first line" in shown
    assert "/submission" not in shown


def test_a_replay_can_be_pasted():
    record = {"file": "my file.py", "replay": "a:1", "verdict": "FAIL", "reason": "", "stages": []}
    out = io.StringIO()
    page.print_page(
        Console(file=out, width=120),
        record | {"isolation": {"sandbox": False}},
    )
    assert "gpulab check 'my file.py' --replay a:1 --trust-python\n" in out.getvalue()
    page.print_page(Console(file=out, width=120), record)
    assert out.getvalue().endswith("--replay a:1\n")


def test_a_bound_is_of_what_is_not_rounded_yet_and_no_share_of_it_is_a_result_that_is_not_finite():
    record = {"file": "k.cu", "verdict": "FAIL", "reason": "", "stages": [], "max_abs_err": 0.5}
    record |= {"diagnosis": {"slug": "nan", "text": "", "fix": ""}, "first_bad_index": [0, 3]}
    record |= {"got": "nan", "wanted": 0.25, "bound": 1e-6}
    record |= {"contract_gate": {"fraction": 0.5}, "arithmetic_gate": {"fraction": None}}
    out = io.StringIO()
    page.print_page(Console(file=out, width=120), record)
    assert "[0, 3]: got nan, wanted 0.25 within 1e-06 before it is rounded\n" in out.getvalue()
    assert "gate fraction 0.5, arithmetic fraction not finite\n" in out.getvalue()


def test_a_compiler_error_shows_the_learners_line(submitted):
    shown = screen(submitted(edited("float sum = 0.0f;", "float sum = undefined_name;")))
    assert "undefined_name" in shown
    assert "kernel.cu(7)" in shown
    assert "__nv_name_map" not in shown
