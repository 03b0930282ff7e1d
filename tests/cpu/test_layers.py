"""Imports point downward, nothing heavy is imported at module level, files stay readable."""

import ast
import re
import subprocess
import sys
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
LINE_LIMIT = 320


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


def test_torch_is_never_imported():
    word = re.compile(r"^\s*(?:import|from)\b.*\btorch\b", re.MULTILINE)
    assert word.search("def f():\n    import numpy, torch.cuda")
    assert [
        path for path in SOURCES if path.suffix == ".py" and word.search(path.read_text())
    ] == []
