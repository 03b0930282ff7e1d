"""What the lab finds on this machine: what is there, what is missing, the command that fixes it.

Needs neither a card nor CuPy nor Numba; a broken one of them is a finding, never a crash.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gpulab import arch
from gpulab.errors import GpulabError
from gpulab.runtime import cache, cuda_context, nvjitlink, nvrtc, toolkit
from gpulab.runtime import driver as driver_facts

Status = Literal["ok", "missing", "warning"]

ESSENTIAL = ("Python", "NumPy", "NVRTC", "CUDA headers", "ml_dtypes", "emulated device")
"""Without one of these the lab cannot run at all."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        name: what was looked for.
        status: ``ok``; ``missing``: something the lab uses is not there; ``warning``: it is there
            or does without, with a remark.
        detail: versions, places, the reason.
        fix: the one command, or None.
    """

    name: str
    status: Status
    detail: str
    fix: str | None = None


def examine() -> list[Finding]:
    """Look at everything, from the interpreter up to the card."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("Python", _python),
        ("NumPy", _numpy),
        ("ml_dtypes", lambda: _package("ml_dtypes", "pip install 'ml_dtypes>=0.5'")),
        ("NVRTC", _nvrtc),
        ("CUDA headers", _headers),
        ("nvJitLink", _nvjitlink),
        ("Numba", _numba),
        ("compile cache", _cache),
        ("driver", _driver),
        ("CuPy", _cupy),
        ("card", _card),
        ("emulated device", _emulated),
    ]
    return list(_run(checks))


def _run(checks: list[tuple[str, Callable[[], Finding]]]) -> Iterator[Finding]:
    for name, check in checks:
        try:
            yield check()
        except GpulabError as error:
            yield Finding(name, "missing", error.message, error.fix)
        except Exception as error:  # a broken installation may raise anything
            text = str(error).splitlines()[0] if str(error) else ""
            yield Finding(name, "missing", f"{type(error).__name__}: {text}")


def usable(findings: list[Finding]) -> bool:
    """Whether the lab can run, on a card or emulated."""
    status = {finding.name: finding.status for finding in findings}
    return all(status.get(name) in ("ok", "warning") for name in ESSENTIAL)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _package(module: str, fix: str, distribution: str = "") -> Finding:
    name = distribution or module
    try:
        importlib.import_module(module)
    except ImportError as error:
        return Finding(name, "missing", str(error), fix)
    return Finding(name, "ok", _version(name))


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _numpy() -> Finding:
    import numpy

    fix = "pip install 'numpy>=2,<2.5'"
    major, minor = (int(part) for part in numpy.__version__.split(".")[:2])
    if major < 2:
        return Finding("NumPy", "missing", f"{numpy.__version__}; 2 or newer is needed", fix)
    if (major, minor) >= (2, 5):
        return Finding("NumPy", "warning", f"{numpy.__version__}; numba-cuda breaks on 2.5", fix)
    return Finding("NumPy", "ok", numpy.__version__)


def _nvrtc() -> Finding:
    kit = toolkit.default()
    archs = nvrtc.supported(kit)
    return Finding(
        "NVRTC",
        "ok",
        f"{kit.version[0]}.{kit.version[1]}, sm_{archs[0]} to sm_{archs[-1]} ({kit.nvrtc})",
    )


def _headers() -> Finding:
    kit = toolkit.default()
    if not kit.headers or kit.headers_version is None:
        return Finding(
            "CUDA headers", "missing", f"none of CUDA {kit.version[0]} found", kit.pip_command
        )
    detail = f"{kit.headers_version[0]}.{kit.headers_version[1]} ({kit.headers[0]})"
    made = nvrtc.compile_text(
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n"
        'extern "C" __global__ void probe(__half* x) { *x = __half(1.0f); }',
        "/gpulab/doctor.cu",
        "probe",
        (8, 9),
        kit=kit,
    )
    if kit.headers_version != kit.version:
        return Finding(
            "CUDA headers",
            "warning",
            f"{detail}; NVRTC is {kit.version[0]}.{kit.version[1]}: a test kernel compiles",
            kit.pip_command,
        )
    return Finding("CUDA headers", "ok", f"{detail}; a test kernel compiles for {made.target}")


def _nvjitlink() -> Finding:
    kit = toolkit.default()
    found = nvjitlink.version(kit.version[0])
    fix = toolkit.pip_nvjitlink(kit.version[0])
    if found is None:
        return Finding("nvJitLink", "missing", f"none of CUDA {kit.version[0]} found", fix)
    if found < kit.version:
        return Finding(
            "nvJitLink", "warning", f"{found[0]}.{found[1]} is older than NVRTC", f"{fix} --upgrade"
        )
    return Finding("nvJitLink", "ok", f"{found[0]}.{found[1]}")


def _numba() -> Finding:
    from gpulab.registry import NumbaBuild, Param
    from gpulab.runtime import numba_ptx

    def make() -> Any:
        def doctor_probe(out: Any, n: Any) -> None:
            out[0] = n

        return doctor_probe

    params = (Param("out", "out", "int32", ("n",)), Param("n", "dim", "int32"))
    made = numba_ptx.compile_numba(NumbaBuild(make, "doctor_probe"), params, (8, 9))
    detail = f"{_version('numba')}, numba-cuda {_version('numba-cuda')}"
    return Finding("Numba", "ok", f"{detail}; a test kernel compiles for {made.target}")


def _cache() -> Finding:
    folder = cache.configured_folder()
    if folder is None:
        return Finding("compile cache", "warning", "off (GPULAB_CACHE=off)", "unset GPULAB_CACHE")
    reason = cache.writable(folder)
    if reason is not None:
        return Finding(
            "compile cache",
            "warning",
            f"{folder}: {reason}; kernels are compiled anew in every process",
            "export GPULAB_CACHE_DIR=/a/folder/you/can/write",
        )
    return Finding("compile cache", "ok", str(folder))


def _driver() -> Finding:
    driver = driver_facts.query()
    if driver is None:
        return Finding("driver", "warning", "no NVIDIA driver: the emulated device is used")
    extra, reason = driver_facts.extra(driver)
    if extra is None:
        return Finding("driver", "warning", reason)
    return Finding("driver", "ok", f"{driver.label}: extra {extra}")


def _cupy() -> Finding:
    driver = driver_facts.query()
    extra = driver_facts.extra(driver)[0]
    if importlib.util.find_spec("cupy") is None:
        if extra is None:
            return Finding("CuPy", "ok", "not installed, and not needed without a card")
        return Finding("CuPy", "missing", "not installed", toolkit.pip_extra(extra))
    cupy = importlib.import_module("cupy")
    built = cuda_context.cupy_version(cupy)
    detail = f"{cupy.__version__}, built for CUDA {built[0]}.{built[1]}"
    try:
        importlib.import_module("cupy.cublas")
    except ImportError as error:
        fix = toolkit.pip_extra(extra or f"cuda{built[0]}")
        reason = str(error).strip().splitlines()[0]
        return Finding("CuPy", "warning", f"{detail}; no cuBLAS for library rows: {reason}", fix)
    return Finding("CuPy", "ok", f"{detail}, with cuBLAS")


def _card() -> Finding:
    driver = driver_facts.query()
    if driver is None or not driver.cards:
        return Finding("card", "warning", "none: the emulated device is used")
    connection = cuda_context.connect()
    card = connection.card
    return Finding("card", "ok", f"{card.name}, {arch.sm(card.capability)}")


def _emulated() -> Finding:
    """Run one kernel and look at its answer."""
    import numpy as np

    from gpulab.registry import LaunchPlan, Param
    from gpulab.runtime.device import PtxBuild
    from gpulab.runtime.emulated import EmulatedDevice

    device = EmulatedDevice()
    made = nvrtc.compile_text(
        'extern "C" __global__ void probe(float* x) { x[threadIdx.x] = threadIdx.x + 0.5f; }',
        "/gpulab/doctor.cu",
        "probe",
        device.target,
    )
    params = (Param("x", "out", "fp32", ("n",)),)
    function = device.build(PtxBuild(made.ptx, made.lowered), params)
    x = device.empty((32,), np.dtype(np.float32))
    device.launch(function, LaunchPlan((1, 1, 1), (32, 1, 1)), [x])
    if not np.array_equal(device.download(x), np.arange(32, dtype=np.float32) + 0.5):
        return Finding("emulated device", "missing", "a test kernel gives wrong numbers")
    device.free(x)
    return Finding("emulated device", "ok", f"{device.name}: a test kernel runs")
