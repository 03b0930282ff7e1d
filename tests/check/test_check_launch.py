"""The launch language, the header, tokens, includes, the wire: each with what it refuses."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.check import includes, token, wire
from gpulab.check.launch import Where, parse_list
from gpulab.check.submission import Launch, parse
from gpulab.errors import BuildError, UsageError

DIMS = {"m": 33, "n": 65, "k": 47}


def value(text, **dims):
    where = Where("x.cu", 2, f"// gpulab: grid={text}", 16)
    return [e({**DIMS, **dims}) for e in parse_list(text, tuple(DIMS), where)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("16,16", [16, 16]),
        ("ceil(n/16),ceil(m/16)", [5, 3]),
        ("(n+15)//16, m - 1", [4 + 1, 32]),
        ("min(n, 40, m), max(m,n)", [33, 65]),
        ("2*(m+n)*k", [2 * 98 * 47]),
        ("- -3", [3]),
        ("-7//2+100", [96]),
        ("ceil((m*n)/(2*k))", [-(-33 * 65 // 94)]),
        ("m-k-1", [33 - 47 - 1]),
        ("7//2*2", [6]),
    ],
)
def test_expressions(text, wanted):
    assert value(text) == wanted


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_ceil_is_exact(n, d):
    assert value(f"ceil(n/{d})", n=n) == [(n + d - 1) // d]


@pytest.mark.parametrize(
    ("text", "column", "hint"),
    [
        ("n/16", 18, "ceil(a/b)"),
        ("N+1", 17, "did you mean n"),
        ("16;2", 19, "not part"),
        ("n**2", 19, "expected a number"),
        ("ceil(n,16)", 23, "expected '/'"),
        ("(n", 19, "expected ')'"),
        ("n 2", 19, "unexpected '2'"),
        ("1,2,3,4", 23, "at most 3"),
        ("__import__('os')", 28, "not part"),
        ("print(1)", 17, "unknown name"),
        ("1.5", 18, "not part"),
        ("min()", 21, "expected a number"),
        ("9" * 30, 17, "18 digits"),
        ("(" * 60 + "1" + ")" * 60, 57, "deep"),
        ("", 17, "empty"),
        ("n," * 300, 17, "500 characters"),
    ],
)
def test_what_the_grammar_does_not_have_is_refused_at_its_column(text, column, hint):
    with pytest.raises(UsageError) as caught:
        value(text)
    error = caught.value
    assert error.details["column"] == column, error.message
    assert hint in f"{error.message} {error.fix}"
    assert error.message.splitlines()[-1].index("^") == 2 + column - 1


def test_a_division_by_nothing_says_what_to_do():
    with pytest.raises(UsageError, match="division by zero") as caught:
        value("n//(m-33)")
    assert caught.value.fix


@pytest.mark.parametrize("text", ["n//(m-33)", "ceil(1/(m-33))", "9999999999999999*9999999999999"])
def test_impossible_values_are_refused(text):
    with pytest.raises(UsageError):
        value(text)


def test_a_launch_that_is_empty_somewhere_is_refused():
    where = Where("x.cu", 1, "n//70", 0)
    launch = Launch(parse_list("16", (), where), parse_list("n//70", ("n",), where), None)
    assert launch.plan({"n": 140}).grid == (2, 1, 1)
    with pytest.raises(UsageError, match="n//70 is 0 at n=65: at least 1 is needed"):
        launch.plan({"n": 65})
    none = Launch(parse_list("0", (), where), launch.grid, None)
    with pytest.raises(UsageError, match=":1: 0: at least 1 is needed") as caught:
        none.plan({"n": 140})
    assert "max(1, ...)" in caught.value.fix


def declared(tmp_path, header, name="x.cu"):
    path = tmp_path / name
    path.write_text(header)
    return parse(path, lambda _: ("m", "n", "k"))


def test_claims_are_read(tmp_path):
    found = declared(
        tmp_path,
        "// gpulab: exercise=e block=1 grid=1\n"
        '// gpulab: claim max_abs_err=3.6e-3 time_ms=4.1 speedup_from="half the bytes"\n',
    )
    assert found.claims == {
        "max_abs_err": 3.6e-3,
        "time_ms": 4.1,
        "speedup_from": "half the bytes",
    }


@pytest.mark.parametrize(
    "line",
    [
        "claim max_abs_err=nan",
        "claim time_ms=-1",
        "claim time_ms=inf",
        "claim speed=3",
        "block=2",
        "warp=3",
        "block",
        'claim speedup_from="open',
    ],
)
def test_bad_declarations_are_refused(line, tmp_path):
    with pytest.raises(UsageError) as caught:
        declared(tmp_path, f"// gpulab: exercise=e block=1 grid=1\n// gpulab: {line}\n")
    assert caught.value.details["line"] == 2
    assert caught.value.fix


def test_python_that_is_none_is_shown_where_it_ends_to_be(tmp_path):
    with pytest.raises(UsageError) as caught:
        declared(tmp_path, "LAUNCH = {}\ndef f(:\n", "x.py")
    first, line, caret = caught.value.message.splitlines()
    assert first.startswith("x.py:2:7: ")
    assert line[caret.index("^")] == ":"
    assert caught.value.details["column"] == 7
    assert caught.value.fix
    with pytest.raises(UsageError, match=r"x\.py:1:\d+: ") as caught:
        declared(tmp_path, "(", "x.py")
    assert caught.value.details["line"] == 1


def test_both_languages_say_the_same(tmp_path):
    cu = declared(tmp_path, "// gpulab: exercise=e block=8,4 grid=ceil(n/8),m shared=4*n\n")
    text = 'LAUNCH = {"exercise": "e", "block": (8, 4), "grid": "ceil(n/8),m", "shared": "4*n"}'
    py = declared(tmp_path, text, "x.py")
    assert cu.launch.plan(DIMS) == py.launch.plan(DIMS)


def test_tokens_come_back():
    made = token.Token("fp16-matmul", 0x1F3A9C22, {"m": 33, "n": 65, "k": 47}, "emulated", (8, 9))
    assert token.parse(str(made)) == made


@pytest.mark.parametrize(
    "text",
    ["", "x", "e:00:m1:emulated-8.9", "e:00000000:m9999999:emulated-8.9", "e:00000000:m1:tpu-8.9"],
)
def test_bad_tokens_are_refused(text):
    with pytest.raises(UsageError):
        token.parse(text)


@pytest.fixture
def headers(tmp_path):
    (tmp_path / "cuda_fp16.h").touch()
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "std.h").touch()
    return [tmp_path]


@pytest.mark.parametrize(
    "text",
    [
        "#include <cuda_fp16.h>",
        '  #  include "cuda_fp16.h"  // half',
        "#include <cuda/std.h>",
        "// #include <stdio.h>\n/* #include <vector> */",
        'const char* s = "#include <nothing>";' * 0,
        "int x; // include everything",
    ],
)
def test_cuda_headers_may_be_included(text, headers):
    includes.check(text, "x.cu", headers)


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '#include "../../etc/passwd"',
        '#include "cuda/../../x"',
        '#inc\\\nlude "/etc/passwd"',
        '# /* */ include /* \n */ "/etc/passwd"',
        '%:include "/etc/passwd"',
        '?\\?=include "/etc/passwd"'.replace("\\", ""),
        "#define X <x>\n#include X",
        'R"(" /* )"\n#include X',
        "/* // */ #include X",
        '#include_next "cuda_fp16.h"',
        '#import "cuda_fp16.h"',
        '#embed "/etc/passwd"',
        "#if __has_include(<cuda_fp16.h>)\n#endif",
        "#include <vector>",
    ],
)
def test_other_files_are_refused_with_their_line(text, headers):
    with pytest.raises(BuildError) as caught:
        includes.check("int first;\n" + text, "x.cu", headers)
    assert caught.value.details["line"] >= 2


def reader(data):
    return io.BytesIO(data).read


def test_frames_come_back():
    arrays = {"a": np.arange(6, dtype=np.uint16).reshape(2, 3), "b": np.zeros((0, 4), np.float32)}
    message, found = wire.unpack(reader(wire.pack({"do": "run"}, arrays)))
    assert message == {"do": "run"}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 11,
        wire.pack({"x": 1})[:-1],
        b"\xff" * 12,
        wire._HEAD.pack(2, 0) + b"[]",
        wire._HEAD.pack(2, 0) + b"{x",
        wire._HEAD.pack(34, 0) + b'{"arrays": [["a", "object", [1]]]}',
        wire._HEAD.pack(34, 0) + b'{"arrays": [["a", "uint8", [99]]]}',
        wire._HEAD.pack(34, 0) + b'{"arrays": [["a", "uint8", [-1]]]}',
        wire._HEAD.pack(2, 3) + b"{}abc",
    ],
)
def test_a_frame_that_is_none_is_refused(data):
    with pytest.raises(wire.WireError):
        wire.unpack(reader(data))


def test_submissions_are_found_once_and_in_order(tmp_path):
    from gpulab.check.folder import collect

    for name in ("b.cu", "a.py", "sub/c.CU", ".hidden/d.cu", "__pycache__/e.py", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = collect([tmp_path, tmp_path / "b.cu"])
    assert [p.relative_to(tmp_path) for p in found] == [
        Path("a.py"),
        Path("b.cu"),
        Path("sub/c.CU"),
    ]
    for nothing in (tmp_path / "missing", tmp_path / ".hidden" / "x"):
        with pytest.raises(UsageError):
            collect([nothing])
