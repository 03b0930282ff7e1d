"""CUDA C++ to PTX and cubin through NVRTC, which needs neither a driver nor a card.

One compilation for ``sm_XX`` gives both: the PTX that the emulated device runs and the cubin that
ptxas made of that very PTX for the card (``tests/cpu/test_runtime_nvrtc.py`` holds that the PTX
equals the one ``compute_XX`` gives). Contraction is off twice, in the compiler and in ptxas,
which would otherwise fuse a plain ``mul.f16`` and ``add.f16``. From 12.9 NVRTC looks into the
driver's compute cache, where there is a driver, and what it finds there comes without a word from
ptxas: no registers, no spills, no warnings. So that cache is off; ``gpulab.runtime.cache`` keeps
the words with the code.

Source: NVRTC documentation, chapters "User Interface" (API, options) and "Caching (CUDA 12.9+)".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpulab.errors import BuildError, DeviceMissingError
from gpulab.runtime import diagnostics, sources, toolkit
from gpulab.runtime.toolkit import Capability, Toolkit

CACHING = (12, 9)
"""The first NVRTC that caches, and knows ``-no-cache``; older ones refuse the option."""


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
    library, count = _library(kit.nvrtc), ctypes.c_int()
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
    lab_headers: bool = True,
) -> tuple[str, ...]:
    """The options of every compilation of the lab; nothing else is ever passed to NVRTC.

    -ftz=false keeps float32 subnormals, -fmad=false keeps ``a * b + c`` as written (two
    roundings) unless ``contract``. ptxas, which exists only behind ``sm_XX``, is told the same.

    Args:
        kit: the compiler, for the folders of its headers.
        target: ``sm_89`` for PTX and cubin, ``compute_89`` for PTX alone.
        defines: ``NAME=VALUE`` macros.
        contract: let multiplications and additions fuse.
        lab_headers: ``raw_kernels/`` can be included, not the CUDA headers alone.
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
        *(["-no-cache"] if kit.version >= CACHING else []),
        *([f"-I{sources.root()}"] if lab_headers else []),
        *(f"-I{folder}" for folder in kit.headers),
        *(f"-D{define}" for define in defines),
    ]
    if target.startswith("sm_"):
        chosen += ["--ptxas-options=-v", f"--ptxas-options=-fmad={fused}"]
    return tuple(chosen)


class _Program:
    """One NVRTC program, destroyed at the end of the ``with`` block."""

    def __init__(self, kit: Toolkit, text: str, name: str) -> None:
        self.api, self.handle = _library(kit.nvrtc), ctypes.c_void_p()
        self.check(
            "CreateProgram", ctypes.byref(self.handle), text.encode(), name.encode(), 0, None, None
        )

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.api.nvrtcDestroyProgram(ctypes.byref(self.handle))

    def check(self, function: str, *args: Any) -> None:
        """Call ``nvrtc<function>``; a refusal is a BuildError with NVRTC's own words."""
        code = getattr(self.api, f"nvrtc{function}")(*args)
        if code != 0:
            self.api.nvrtcGetErrorString.restype = ctypes.c_char_p
            words = self.api.nvrtcGetErrorString(code).decode()
            raise BuildError(f"NVRTC: nvrtc{function}: {words}")

    def compile(self, chosen: Sequence[str]) -> bool:
        """Compile with these options; False if the compiler refuses the source."""
        raw = (ctypes.c_char_p * len(chosen))(*(option.encode() for option in chosen))
        return bool(self.api.nvrtcCompileProgram(self.handle, len(chosen), raw) == 0)

    def read(self, what: str) -> bytes:
        """One of the outputs: ``PTX``, ``CUBIN``, ``LTOIR``, ``ProgramLog``."""
        size = ctypes.c_size_t()
        self.check(f"Get{what}Size", self.handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.check(f"Get{what}", self.handle, buffer)
        return buffer.raw

    @property
    def log(self) -> str:
        """What the compiler and ptxas said, whose parts end with a zero byte each."""
        return self.read("ProgramLog").replace(b"\0", b"").decode(errors="replace")


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
    lab_headers: bool = True,
) -> Compiled:
    """Compile source text; see ``compile_cubin`` for the other arguments and the errors.

    Args:
        text: CUDA C++.
        name: the file name that messages and the line table show.
        entry: name expression.
        capability: (8, 9).
        defines: ``NAME=VALUE`` macros.
        feature_target: compile for ``sm_90a`` rather than ``sm_90``.
        contract: let ``a * b + c`` fuse.
        cubin: assemble too; without, the log has no resources and ptxas checks nothing.
        kit: which NVRTC; ``toolkit.default()`` unless told.
        lab_headers: ``raw_kernels/`` can be included, not the CUDA headers alone.
    """
    kit = kit or toolkit.default()
    target = target_name(kit, capability, feature_target)
    asked = target if cubin else target.replace("sm_", "compute_")

    def ptx_alone() -> str:  # ptxas names a line of the PTX: fetch it to translate the line
        rest: dict[str, Any] = {"feature_target": feature_target, "contract": contract, "kit": kit}
        rest["lab_headers"] = lab_headers
        again = compile_text(text, name, entry, capability, defines=defines, cubin=False, **rest)
        return again.ptx

    with _Program(kit, text, name) as program:
        program.check("AddNameExpression", program.handle, entry.encode())
        flags = options(kit, asked, defines=defines, contract=contract, lab_headers=lab_headers)
        if not program.compile(flags):
            raise diagnostics.build_error(
                program.log, name, entry, target, kit, ptx_alone if cubin else None
            )
        lowered = ctypes.c_char_p()
        program.check("GetLoweredName", program.handle, entry.encode(), ctypes.byref(lowered))
        return Compiled(
            entry=entry,
            lowered=(lowered.value or b"").decode(),
            target=target,
            ptx=program.read("PTX").rstrip(b"\0").decode(),
            cubin=program.read("CUBIN") if cubin else None,
            log=program.log,
            nvrtc=kit.version,
        )


def compile_lto(text: str, name: str, target: str, kit: Toolkit) -> bytes:
    """Compile device functions to LTO-IR, to be linked with a kernel that calls them.

    Args:
        text: CUDA C++.
        name: for messages.
        target: ``sm_89``, the kernel's.
        kit: which NVRTC.

    Raises:
        BuildError: the compiler refuses it.
    """
    chosen = (*options(kit, target.replace("sm_", "compute_")), "-dlto", "-rdc=true")
    with _Program(kit, text, name) as program:
        if not program.compile(chosen):
            raise diagnostics.build_error(program.log, name, name, target, kit)
        return program.read("LTOIR")


def compile_cubin(
    source: str | Path,
    entry: str,
    capability: Capability,
    *,
    defines: Sequence[str] = (),
    feature_target: bool = False,
    contract: bool = False,
    cubin: bool = True,
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
        cubin: assemble too.
        kit: which NVRTC; ``toolkit.default()`` unless told.

    Raises:
        BuildError: no such source, no such target, or the compiler refuses it: the message is
            its first error with file and line, ``details["log"]`` the whole log.
        DeviceMissingError: NVRTC is not installed; names the command.
    """
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


def compile_ptx(
    source: str | Path, entry: str, capability: Capability, **arguments: Any
) -> Compiled:
    """As ``compile_cubin`` without assembling: ``.ptx`` and ``.lowered``, no cubin.

    Faster by ptxas' time, but nobody checks that the target has the instructions used.
    """
    return compile_cubin(source, entry, capability, cubin=False, **arguments)
