"""Imports point downward, nothing heavy is imported at module level, files stay readable."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpulab"

# Lowest first; a module may import its own layer and those before it.
LAYERS = [
    ["gpulab.errors"],
    ["gpulab.formats"],
    ["gpulab.arch"],
    ["gpulab.numerics"],
    ["gpulab.ops"],
    ["gpulab.device_code"],
    ["gpulab.registry"],
    ["gpulab.emulator"],
    ["gpulab.runtime"],
    ["gpulab.kernels"],
    ["gpulab.report"],
    ["gpulab.lab"],
    ["gpulab.exercises"],
    ["gpulab.check"],
    ["gpulab.bench"],
    ["gpulab.explain"],
    ["gpulab.cli", "gpulab.__main__"],
]
HEAVY = {"cupy", "cupyx", "numba", "pynvml", "matplotlib", "torch"}
LINE_LIMIT, FUNCTION_LIMIT, DEVICE_LIMIT = 320, 60, 100
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def level(module: str) -> int:
    for i, names in enumerate(LAYERS):
        if any(module == n or module.startswith(n + ".") for n in names):
            return i
    raise AssertionError(f"{module} belongs to no layer: add it to LAYERS")


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        yield name, path


def imports(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def upward(name: str, tree: ast.Module) -> list[str]:
    found = []
    for target in imports(tree):
        ours = target.startswith("gpulab.") and target != "gpulab.__version__"
        if ours and level(target) > level(name):
            found.append(target)
    return found


def heavy(tree: ast.Module) -> list[str]:
    top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    return [target for target in imports(top) if target.split(".")[0] in HEAVY]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_imports_point_downward():
    found = {n: upward(n, parsed(path)) for n, path in modules() if n != "gpulab"}
    assert {n: targets for n, targets in found.items() if targets} == {}


def test_an_upward_import_is_seen():
    assert upward("gpulab.formats.table", ast.parse("from gpulab.cli import main")) != []


def test_no_heavy_import_at_module_level():
    found = {n: heavy(parsed(path)) for n, path in modules()}
    assert {n: targets for n, targets in found.items() if targets} == {}


def test_a_heavy_import_is_seen_at_module_level_only():
    assert heavy(ast.parse("from numba import cuda")) != []
    assert heavy(ast.parse("def f():\n    import cupy")) == []


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["formats"], ["doctor"]])
def test_runs_without_cupy_and_numba(arguments):
    code = (
        "import sys\n"
        "for name in ('cupy', 'numba'): sys.modules[name] = None\n"
        "from gpulab.cli import main\n"
        f"main({arguments!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


SOURCES = [
    p
    for folder in ("gpulab", "raw_kernels", "tests", "scripts")
    for p in sorted((ROOT / folder).rglob("*"))
    if p.suffix in (".py", ".cu", ".cuh")
]


def test_line_budget():
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > LINE_LIMIT} == {}


def own(node: ast.AST) -> Iterator[ast.AST]:
    """What a function or module consists of, without what the functions it defines consist of."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, FUNCTION):
            yield from own(child)


def span(function: ast.AST) -> int:
    return function.end_lineno - function.lineno + 1


def lines(function: ast.AST) -> int:
    """From ``def`` to the end, without the functions (and their decorators) that it defines."""
    count = span(function)
    for part in own(function):
        if isinstance(part, FUNCTION):
            first = min(n.lineno for n in (part, *part.decorator_list))
            count -= part.end_lineno - first + 1
    return count


def on_device(function: ast.AST) -> bool:
    """A function within a function is device code if it names something of Numba's ``cuda``."""
    return any(
        isinstance(n, ast.Attribute) and ast.unparse(n.value) == "cuda" for n in own(function)
    )


def long_functions(tree: ast.Module) -> dict[str, int]:
    """How many lines the functions that are too long have."""
    wide = [n for n in ast.walk(tree) if isinstance(n, FUNCTION) and span(n) > FUNCTION_LIMIT]
    nested = {part for outer in wide for part in own(outer)}
    return {
        f.name: lines(f)
        for f in wide
        if lines(f) > (DEVICE_LIMIT if f in nested and on_device(f) else FUNCTION_LIMIT)
    }


def long_bodies(text: str) -> list[int]:
    """How many lines the bodies, from brace to brace, of C++ functions that are too long have."""
    text = re.sub(r'//.*|"(?:\\.|[^"\\\n])*"', "", text)
    opened, found = [], []
    for brace in re.finditer(r"(\)[\w\s]*)?\{|\}", text):
        if brace[0] != "}":
            opened.append(brace)
            continue
        start = opened.pop()
        count = text.count("\n", start.end(), brace.start()) + 1
        if start[1] and count > DEVICE_LIMIT:
            found.append(count)
    return found


def test_function_budget():
    found = {}
    for path in SOURCES:
        long = (
            long_functions(parsed(path)) if path.suffix == ".py" else long_bodies(path.read_text())
        )
        if long:
            found[str(path.relative_to(ROOT))] = long
    assert found == {}


def python(head: str, count: int, indent: str = "") -> str:
    """A function of so many lines."""
    return "\n".join([f"{indent}{head}", *[f"{indent}    y = cuda.x"] * (count - 1), ""])


def test_a_long_function_is_seen():
    assert long_functions(ast.parse(python("def f():", 60))) == {}
    assert long_functions(ast.parse(python("def f():", 61))) == {"f": 61}
    assert long_functions(ast.parse("@cuda.jit\n" + python("def f():", 60))) == {}
    assert long_functions(ast.parse("class C:\n" + python("def f():", 61, "    "))) == {"f": 61}
    told = "    'what it does'\n    # how\n\n"
    assert long_functions(ast.parse("def f():\n" + told * 19 + "    return 1\n")) == {}
    assert long_functions(ast.parse("def f():\n" + told * 20 + "    return 1\n")) == {"f": 62}


def test_a_function_within_a_function_is_counted_by_itself():
    inner = python("def inner():", 60, "    ").replace("cuda.x", "x")
    assert long_functions(ast.parse(python("def f():", 60) + "    @jit\n" + inner)) == {}
    assert long_functions(ast.parse(python("def f():", 61) + "    @jit\n" + inner)) == {"f": 61}
    longer = inner + "        y = x\n"
    assert long_functions(ast.parse(python("def f():", 60) + longer)) == {"inner": 61}


def test_device_code_may_be_longer():
    make = "def make():\n"
    assert long_functions(ast.parse(make + python("def kernel():", 100, "    "))) == {}
    assert long_functions(ast.parse(make + python("def kernel():", 101, "    "))) == {"kernel": 101}
    factory = "    def part():\n" + "        y = x\n" * 60 + python("def kernel():", 9, "        ")
    assert long_functions(ast.parse(make + factory)) == {"part": 61}, "it is none itself"
    body = "    if (x) {\n    }\n"
    for head in ("void f(int a)", "int f() const", "S() : a(1)"):
        assert long_bodies(f"struct S {{\n{head} {{\n{body * 49}}}\n}};\n") == []
        assert long_bodies(f"struct S {{\n{head} {{\n{body * 49}\n}}\n}};\n") == [101]


def test_torch_is_never_imported():
    word = re.compile(r"^\s*(?:import|from)\b.*\btorch\b", re.MULTILINE)
    assert word.search("def f():\n    import numpy, torch.cuda")
    assert [
        path for path in SOURCES if path.suffix == ".py" and word.search(path.read_text())
    ] == []
