"""Where NVRTC and the CUDA headers are: the pip wheels first, then a toolkit on the system."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpulab.arch import Capability as Capability
from gpulab.errors import DeviceMissingError
from gpulab.runtime import driver

PIP_NVRTC = (
    "pip install 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14' "
    "'nvidia-cuda-crt>=13,<14' 'nvidia-cuda-cccl>=13,<14'"
)
PIP_NVRTC_12 = (
    "pip install 'nvidia-cuda-nvrtc-cu12>=12.9,<13' 'nvidia-cuda-runtime-cu12>=12.9,<13' "
    "'nvidia-cuda-cccl-cu12>=12.9,<13'"
)
PIP_NVVM = "pip install 'nvidia-nvvm>=13,<14'"
PIP_NUMBA = "pip install 'numba>=0.61' 'numba-cuda>=0.30,<0.31' 'nvidia-nvvm>=13,<14'"
_PARTS = ("crt/mma.h", "nv/target")
"""Headers that CUDA's headers include and other wheels or folders may hold: one of each."""
_LIBRARY = re.compile(r"libnvrtc\.so\.(\d+)(\.\d+)*$")


def pip_nvjitlink(major: int) -> str:
    """The command that installs the nvJitLink of a CUDA major version."""
    suffix = "-cu12>=12.9,<13" if major == 12 else ">=13,<14"
    return f"pip install 'nvidia-nvjitlink{suffix}'"


def pip_extra(extra: str) -> str:
    """The command that installs an extra of this very installation of the lab."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    return f"pip install 'gpulab[{extra}]'"


@dataclass(frozen=True)
class Toolkit:
    """One NVRTC and the headers that belong to it.

    Args:
        nvrtc: the shared object.
        version: of NVRTC, (major, minor).
        headers: folders for ``-I``; empty where none of the same major version were found.
        headers_version: ``CUDART_VERSION`` of those headers as (major, minor).
    """

    nvrtc: Path
    version: tuple[int, int]
    headers: tuple[Path, ...]
    headers_version: tuple[int, int] | None

    @property
    def stamp(self) -> list[list[int | str]]:
        """Path, size and time of library and headers: changes when a patch release replaces them
        (NVRTC itself reports major and minor only)."""
        files = [self.nvrtc, *(folder / "cuda_runtime_api.h" for folder in self.headers[:1])]
        return [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in files]

    @property
    def pip_command(self) -> str:
        """The command that installs this major version with its headers."""
        return PIP_NVRTC_12 if self.version[0] == 12 else PIP_NVRTC


def _site_folders() -> Iterator[Path]:
    """Folders that may hold the ``nvidia`` namespace of the pip wheels, in import order."""
    seen = set()
    for place in [*sys.path, sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]:
        folder = Path(place or ".") / "nvidia"
        if folder not in seen and folder.is_dir():
            seen.add(folder)
            yield folder


def _system_folders() -> Iterator[Path]:
    """Toolkits on the system: CUDA_PATH, CUDA_HOME, then the usual place."""
    named = [Path(os.environ[n]) for n in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(n)]
    usual = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    for folder in [*named, *usual]:
        if folder.is_dir():
            yield folder


def _libraries(wheel_folder: str, pattern: str) -> Iterator[Path]:
    """Files of that name in the CUDA 13 wheels, the CUDA 12 wheel, and the system's toolkits."""
    for site in _site_folders():
        for folder in ("cu13/lib", wheel_folder):
            yield from sorted((site / folder).glob(pattern))
    for toolkit in _system_folders():
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib"):
            yield from sorted((toolkit / folder).glob(pattern))


def nvjitlink(major: int) -> Path | None:
    """The nvJitLink library of a CUDA major version."""
    return next(_libraries("nvjitlink/lib", f"libnvJitLink.so.{major}"), None)


def nvvm(major: int) -> Path | None:
    """The wheels' libnvvm of a CUDA major version (all carry the soname ``libnvvm.so.4``)."""
    wheel = "cu13/lib" if major == 13 else "cuda_nvcc/nvvm/lib64"
    found = (
        path for site in _site_folders() for path in sorted((site / wheel).glob("libnvvm.so*"))
    )
    return next(found, None)


def _header_candidates() -> Iterator[Path]:
    for site in _site_folders():
        for folder in ("cu13/include", "cuda_runtime/include"):
            yield site / folder
    for toolkit in _system_folders():
        for folder in ("include", "targets/x86_64-linux/include"):
            yield toolkit / folder


def header_version(folder: Path) -> tuple[int, int] | None:
    """``CUDART_VERSION`` of the headers in a folder; None if there are none."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return (int(match[1]) // 1000, int(match[1]) % 1000 // 10) if match else None


def reported_version(path: Path) -> tuple[int, int] | None:
    """The version a libnvrtc reports; None if it cannot be loaded."""
    try:
        library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return major.value, minor.value


def _headers_for(version: tuple[int, int]) -> tuple[tuple[Path, ...], tuple[int, int] | None]:
    """Headers of the same major version, the same minor first; a mixed pair does not compile."""
    same = [(f, v) for f in _header_candidates() if (v := header_version(f)) and v[0] == version[0]]
    same.sort(key=lambda pair: abs(pair[1][1] - version[1]))
    if not same:
        return (), None
    folder, found = same[0]
    near = ("cccl", "../../cuda_crt/include", "../../cuda_cccl/include")
    places = [p for f, v in same if v == found for p in (f, *((f / n).resolve() for n in near))]
    rest = [next((p for p in places if (p / part).is_file()), folder) for part in _PARTS]
    return tuple(dict.fromkeys((folder, *rest))), found


@lru_cache(maxsize=1)
def installed() -> tuple[Toolkit, ...]:
    """Every usable NVRTC, in search order (one entry a version)."""
    found: dict[tuple[int, int], Toolkit] = {}
    for path in _libraries("cuda_nvrtc/lib", "libnvrtc.so.*"):
        if not _LIBRARY.search(path.name):
            continue
        version = reported_version(path)
        if version is not None and version not in found:
            found[version] = Toolkit(path, version, *_headers_for(version))
    return tuple(found.values())


def find(max_version: tuple[int, int] | None = None) -> Toolkit:
    """The newest NVRTC, or the newest whose cubins a driver of ``max_version`` loads.

    A driver runs the cubins of every toolkit of its own major version or an older one.

    Args:
        max_version: CUDA version of the driver, (major, minor); None without a card.

    Raises:
        DeviceMissingError: there is none; names the command that installs it.
    """
    candidates = sorted(installed(), key=lambda t: t.version, reverse=True)
    if not candidates:
        raise DeviceMissingError("NVRTC (libnvrtc.so) is not installed", fix=PIP_NVRTC)
    if max_version is None:
        return candidates[0]
    for toolkit in candidates:
        if toolkit.version[0] <= max_version[0]:
            return toolkit
    have = ", ".join(f"{t.version[0]}.{t.version[1]}" for t in candidates)
    raise DeviceMissingError(
        f"NVRTC {have} is newer than the driver, which runs CUDA {max_version[0]}",
        fix=PIP_NVRTC_12 if max_version[0] == 12 else "update the NVIDIA driver to 525 or newer",
    )


def default() -> Toolkit:
    """The NVRTC used where none is named: the card's where there is a driver, so that the
    emulated device runs the very PTX the card runs, else the newest.

    Raises:
        DeviceMissingError: there is none; names the command that installs it.
    """
    present = _driver_cuda()
    if present is not None:
        with contextlib.suppress(DeviceMissingError):
            return find(present)
    return find()


@lru_cache(maxsize=1)
def _driver_cuda() -> tuple[int, int] | None:
    present = driver.query()
    return present.cuda if present is not None else None
