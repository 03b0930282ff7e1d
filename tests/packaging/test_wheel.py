"""The wheel carries the device sources and runs a kernel away from the checkout."""

import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def digest_tree(files):
    return {name: hashlib.sha256(data).hexdigest() for name, data in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = out.glob("*.whl")
    return built


def test_wheel_carries_every_device_source(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = digest_tree(
            (n.removeprefix("gpulab/raw_kernels/"), archive.read(n))
            for n in archive.namelist()
            if n.startswith("gpulab/raw_kernels/")
        )
    root = ROOT / "raw_kernels"
    outside = digest_tree(
        (str(p.relative_to(root)), p.read_bytes()) for p in root.rglob("*") if p.is_file()
    )
    assert inside == outside
    assert any(name.endswith("matmul/simt.cu") for name in inside)


@pytest.mark.slow
def test_installed_wheel_runs_a_kernel(wheel, tmp_path):
    """A fresh environment gets the wheel alone; what it depends on is seen through a .pth file,
    so that the test needs no network and installs nothing twice."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = (home / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    dependencies = [p for p in sys.path if p.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    away = tmp_path / "away"
    away.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GPULAB"))}
    environment["GPULAB_CACHE_DIR"] = str(tmp_path / "cache")
    python = str(home / "bin" / "python")
    where = subprocess.run(
        [python, "-c", "import gpulab; print(gpulab.__file__)"],
        cwd=away, env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    done = subprocess.run(
        [python, "-m", "gpulab", "matmul", "--size", "32", "--device", "emulated",
         "--kernel", "simt", "--backend", "raw", "--format", "fp16", "--json"],
        cwd=away, env=environment, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"verdict": "PASS"' in done.stdout
