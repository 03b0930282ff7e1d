"""CUDA C++ to PTX and cubin through NVRTC, which needs neither a driver nor a card.

One compilation for ``sm_XX`` gives both: the PTX that the emulated device runs and the cubin that
ptxas made of that very PTX for the card (``tests/cpu/test_runtime_nvrtc.py`` holds that the PTX
equals the one ``compute_XX`` gives). Contraction is off twice, in the compiler and in ptxas,
which would otherwise fuse a plain ``mul.f16`` and ``add.f16``.

Source: NVRTC documentation, chapters 3 (API) and 4 (options).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpulab.errors import BuildError, DeviceMissingError
from gpulab.runtime import diagnostics, sources, toolkit
from gpulab.runtime.toolkit import Capability, Toolkit


@dataclass(frozen=True)
class Compiled:
    """What one compilation gives.

    Args:
        entry: the name expression that was asked for.
        lowered: its mangled name, the symbol in PTX and cubin.
        target: ``sm_89``, ``sm_90a``.
        ptx: the PTX text.
        cubin: the machine code; None where only PTX was asked for.
        log: what the compiler and ptxas said (ptxas: registers, spills, shared memory).
        nvrtc: version, (major, minor).
    """

    entry: str
    lowered: str
    target: str
    ptx: str
    cubin: bytes | None
    log: str
    nvrtc: tuple[int, int]


@lru_cache(maxsize=4)
def _library(path: Path) -> Any:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceMissingError(
            f"cannot load {path}: {error}", fix=toolkit.PIP_NVRTC, library=str(path)
        ) from None


@lru_cache(maxsize=4)
def supported(kit: Toolkit) -> tuple[int, ...]:
    """The architectures this NVRTC compiles for, as 75, 80, ... ascending."""
    library, count = _library(kit.library), ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(archs)
    return tuple(sorted(archs))


def target_name(kit: Toolkit, capability: Capability, feature_target: bool = False) -> str:
    """``sm_89`` for (8, 9); the nearest lower one of the same major that the compiler knows.

    Args:
        kit: the compiler.
        capability: of the card or of the emulated device.
        feature_target: the architecture-specific set (``sm_90a``), which runs on that
            capability only, so that no lower one may stand in.

    Raises:
        BuildError: the compiler has no such target.
    """
    wanted = capability[0] * 10 + capability[1]
    known = [a for a in supported(kit) if a // 10 == capability[0] and a <= wanted]
    if not known or (feature_target and (known[-1] != wanted or wanted < 90)):
        raise BuildError(
            f"NVRTC {kit.version[0]}.{kit.version[1]} has no target "
            f"sm_{wanted}{'a' if feature_target else ''}; "
            f"it has {', '.join(f'sm_{a}' for a in supported(kit))}",
            fix=kit.pip_command,
        )
    return f"sm_{known[-1]}{'a' if feature_target else ''}"


def options(
    kit: Toolkit,
    target: str,
    *,
    defines: Sequence[str] = (),
    contract: bool = False,
) -> tuple[str, ...]:
    """The options of every compilation of the lab; nothing else is ever passed to NVRTC.

    -ftz=false keeps float32 subnormals, -fmad=false keeps ``a * b + c`` as written (two
    roundings) unless ``contract``. ptxas, which exists only behind ``sm_XX``, is told the same.

    Args:
        kit: the compiler, for the folders of its headers.
        target: ``sm_89`` for PTX and cubin, ``compute_89`` for PTX alone.
        defines: ``NAME=VALUE`` macros.
        contract: let multiplications and additions fuse.
    """
    fused = "true" if contract else "false"
    chosen = [
        f"-arch={target}",
        "--std=c++17",
        "-default-device",
        "-ftz=false",
        "-prec-div=true",
        "-prec-sqrt=true",
        f"-fmad={fused}",
        "-lineinfo",
        # Includes are written from the root: without this NVRTC also looks where the process is.
        "-no-source-include",
        f"-I{sources.root()}",
        *(f"-I{folder}" for folder in kit.headers),
        *(f"-D{define}" for define in defines),
    ]
    if target.startswith("sm_"):
        chosen += ["--ptxas-options=-v", f"--ptxas-options=-fmad={fused}"]
    return tuple(chosen)


def _text(library: Any, program: ctypes.c_void_p, what: str) -> bytes:
    """Read one of the program's outputs (``PTX``, ``CUBIN``, ``ProgramLog``)."""
    size = ctypes.c_size_t()
    if getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) != 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    if getattr(library, f"nvrtcGet{what}")(program, buffer) != 0:
        return b""
    return buffer.raw


def compile_text(
    text: str,
    name: str,
    entry: str,
    capability: Capability,
    *,
    defines: Sequence[str] = (),
    feature_target: bool = False,
    contract: bool = False,
    cubin: bool = True,
    kit: Toolkit | None = None,
) -> Compiled:
    """Compile source text; see ``compile_cubin`` for the arguments and errors.

    Args:
        text: CUDA C++.
        name: the file name that messages and the line table show.
        entry: name expression: ``matmul_simt<__half, float>`` or an ``extern "C"`` name.
        capability: (8, 9).
        defines: ``NAME=VALUE`` macros.
        feature_target: compile for ``sm_90a`` rather than ``sm_90``.
        contract: let ``a * b + c`` fuse.
        cubin: assemble too; without, the log has no resources and ptxas checks nothing.
        kit: which NVRTC; the newest by default.
    """
    kit = kit or toolkit.find()
    target = target_name(kit, capability, feature_target)
    asked = target if cubin else target.replace("sm_", "compute_")
    chosen = options(kit, asked, defines=defines, contract=contract)
    library, program = _library(kit.library), ctypes.c_void_p()
    _check(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), name.encode(), 0, None, None
        ),
    )
    try:
        _check(library, library.nvrtcAddNameExpression(program, entry.encode()))
        raw = (ctypes.c_char_p * len(chosen))(*(option.encode() for option in chosen))
        code = library.nvrtcCompileProgram(program, len(chosen), raw)
        log = _text(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code != 0:
            again: Callable[[], str] | None = None
            if cubin:  # ptxas names a line of the PTX: fetch that PTX to translate it

                def again() -> str:
                    return compile_text(
                        text,
                        name,
                        entry,
                        capability,
                        defines=defines,
                        feature_target=feature_target,
                        contract=contract,
                        cubin=False,
                        kit=kit,
                    ).ptx

            raise diagnostics.build_error(log, name, entry, target, kit, again)
        lowered = ctypes.c_char_p()
        _check(
            library,
            library.nvrtcGetLoweredName(program, entry.encode(), ctypes.byref(lowered)),
        )
        ptx = _text(library, program, "PTX").rstrip(b"\0").decode()
        image = _text(library, program, "CUBIN") if cubin else None
        return Compiled(
            entry, (lowered.value or b"").decode(), target, ptx, image, log, kit.version
        )
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _check(library: Any, code: int) -> None:
    if code != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise BuildError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}")


def compile_cubin(
    source: str | Path,
    entry: str,
    capability: Capability,
    *,
    defines: Sequence[str] = (),
    feature_target: bool = False,
    contract: bool = False,
    kit: Toolkit | None = None,
) -> Compiled:
    """Compile a source of ours (or a learner's) for ``capability`` to PTX and cubin.

    Args:
        source: path relative to ``raw_kernels/``, or absolute.
        entry: name expression: ``matmul_simt<__half, float>`` or an ``extern "C"`` name.
        capability: (8, 9).
        defines: ``NAME=VALUE`` macros.
        feature_target: compile for ``sm_90a`` rather than ``sm_90``.
        contract: let ``a * b + c`` fuse.
        kit: which NVRTC; the newest by default.

    Raises:
        BuildError: no such source, no such target, or the compiler refuses it: the message is
            its first error with file and line, ``details["log"]`` the whole log.
        DeviceMissingError: NVRTC is not installed; names the command.
    """
    return _compile(source, entry, capability, defines, feature_target, contract, True, kit)


def compile_ptx(
    source: str | Path,
    entry: str,
    capability: Capability,
    *,
    defines: Sequence[str] = (),
    feature_target: bool = False,
    contract: bool = False,
    kit: Toolkit | None = None,
) -> Compiled:
    """As ``compile_cubin`` without assembling: ``.ptx`` and ``.lowered``, no cubin.

    Faster by ptxas' time, but nobody checks that the target has the instructions used.
    """
    return _compile(source, entry, capability, defines, feature_target, contract, False, kit)


def _compile(
    source: str | Path,
    entry: str,
    capability: Capability,
    defines: Sequence[str],
    feature_target: bool,
    contract: bool,
    cubin: bool,
    kit: Toolkit | None,
) -> Compiled:
    path = sources.resolve(source)
    return compile_text(
        sources.read(path),
        str(path),
        entry,
        capability,
        defines=defines,
        feature_target=feature_target,
        contract=contract,
        cubin=cubin,
        kit=kit,
    )
