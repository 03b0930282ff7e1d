"""Imports point downward, nothing heavy is imported at module level, files stay readable."""

import ast
import subprocess
import sys
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


def upward(name: str, source: str) -> list[str]:
    found = []
    for target in imports(ast.parse(source)):
        ours = target.startswith("gpulab.") and target != "gpulab.__version__"
        if ours and level(target) > level(name):
            found.append(target)
    return found


@pytest.mark.parametrize(("name", "path"), [m for m in modules() if m[0] != "gpulab"])
def test_imports_point_downward(name, path):
    assert upward(name, path.read_text()) == []


def test_an_upward_import_is_seen():
    assert upward("gpulab.formats.table", "from gpulab.cli import main") != []


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_no_heavy_import_at_module_level(name, path):
    body = ast.parse(path.read_text()).body
    for node in (n for n in body if isinstance(n, ast.Import | ast.ImportFrom)):
        for target in imports(ast.Module([node], [])):
            assert target.split(".")[0] not in HEAVY, f"{name} imports {target} at module level"


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


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_line_budget(path):
    assert len(path.read_text().splitlines()) <= LINE_LIMIT


def test_torch_is_never_imported():
    for path in SOURCES:
        if path.suffix == ".py":
            for target in imports(ast.parse(path.read_text())):
                assert target.split(".")[0] != "torch", path
