"""PTX to cubin, and several LTO modules to one PTX, through nvJitLink; no driver is needed.

Used where NVRTC does not assemble by itself: Numba's PTX, PTX handed in by a checker's child, and
code of a lower target that is to run on a newer card. The driver's own JIT would do the same but
refuses PTX newer than itself. nvJitLink must not look into the driver's compute cache: what comes
from there comes without ptxas' words.

Source: nvJitLink documentation, chapter "Supported Link Options".
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpulab.errors import BuildError
from gpulab.runtime import diagnostics, toolkit

_PTX, _LTOIR = 2, 3  # nvJitLinkInputType
_NAMES_A_FILE = re.compile(r"^\s*\.file\s", re.MULTILINE)
CACHING = (12, 1)
"""The first nvJitLink that knows ``-no-cache``."""


@dataclass(frozen=True)
class Linked:
    """What a link gives: the cubin or PTX, and what nvJitLink and ptxas said."""

    image: bytes
    log: str


@lru_cache(maxsize=4)
def _library(path: Path) -> Any:
    return ctypes.CDLL(str(path))


def version(major: int) -> tuple[int, int] | None:
    """The nvJitLink of a CUDA major version, or None where it is not installed."""
    path = toolkit.nvjitlink(major)
    if path is None:
        return None
    a, b = ctypes.c_uint(), ctypes.c_uint()
    _library(path).nvJitLinkVersion(ctypes.byref(a), ctypes.byref(b))
    return a.value, b.value


def assemble(
    ptx: str, target: str, *, major: int, contract: bool = False, name: str = "kernel.ptx"
) -> Linked:
    """Assemble PTX of ``target`` or any lower one into a cubin for ``target``.

    Args:
        ptx: the text.
        target: ``sm_90``.
        major: CUDA major version of the nvJitLink to use: the driver's, or the compiler's.
        contract: let ptxas fuse multiplications and additions that name no rounding.
        name: for messages.

    Raises:
        BuildError: ptxas refuses it (with the source line, where the PTX has one), or nvJitLink
            is not installed.
    """
    options = [f"-arch={target}", "-verbose", f"-Xptxas=-fmad={'true' if contract else 'false'}"]
    if _NAMES_A_FILE.search(ptx):  # lines of no file: nvJitLink may abort on them, with the process
        options.append("-lineinfo")
    return _link([(_PTX, ptx.encode() + b"\0", name)], options, major, "Cubin", ptx)


def link_lto(modules: Sequence[tuple[str, bytes]], target: str, *, major: int) -> Linked:
    """Optimise LTO modules together into one PTX for ``target``; nothing is contracted.

    Args:
        modules: (name, LTO-IR) pairs, the kernel's first.
        target: ``sm_89``.
        major: CUDA major version of the nvJitLink to use.

    Raises:
        BuildError: they do not fit together, or nvJitLink is not installed.
    """
    options = [f"-arch={target}", "-lto", "-ptx", "-lineinfo", "-fma=0", "-ftz=0"]
    options += ["-prec-div=1", "-prec-sqrt=1"]
    inputs = [(_LTOIR, data, name) for name, data in modules]
    return _link(inputs, options, major, "Ptx", None)


def _link(
    inputs: Sequence[tuple[int, bytes, str]],
    options: Sequence[str],
    major: int,
    what: str,
    ptx: str | None,
) -> Linked:
    path = toolkit.nvjitlink(major)
    if path is None:
        raise BuildError(
            f"nvJitLink of CUDA {major} is not installed: it assembles PTX for the card and links "
            "Numba's half arithmetic",
            fix=toolkit.pip_nvjitlink(major),
        )
    library, handle = _library(path), ctypes.c_void_p()
    found = version(major) or (major, 0)
    options = [*options, *(["-no-cache"] if found >= CACHING else [])]
    raw = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = library.nvJitLinkCreate(ctypes.byref(handle), len(options), raw)
    if code != 0:
        raise BuildError(f"nvJitLink refuses {' '.join(options)} (error {code})")
    try:
        for kind, data, name in inputs:
            code = code or library.nvJitLinkAddData(
                handle, kind, data, ctypes.c_size_t(len(data)), name.encode()
            )
        code = code or library.nvJitLinkComplete(handle)
        error, log = (_read(library, handle, w, "Log") for w in ("Error", "Info"))
        if code != 0:
            raise diagnostics.link_error((error + log).decode(errors="replace"), inputs[0][2], ptx)
        image = _read(library, handle, f"Linked{what}", "")
        return Linked(image, (error + log).decode(errors="replace"))
    finally:
        library.nvJitLinkDestroy(ctypes.byref(handle))


def _read(library: Any, handle: ctypes.c_void_p, what: str, suffix: str) -> bytes:
    size = ctypes.c_size_t()
    if getattr(library, f"nvJitLinkGet{what}{suffix}Size")(handle, ctypes.byref(size)) != 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value + 1)
    if getattr(library, f"nvJitLinkGet{what}{suffix}")(handle, buffer) != 0:
        return b""
    text = buffer.raw[: size.value]
    return text.rstrip(b"\0") if suffix or what == "LinkedPtx" else text
