"""Numba kernels as PTX, compiled without a card; the same text runs on both devices.

Element types. A kernel of a ``NumbaBuild`` receives C-contiguous arrays of these Numba types:

========================  ============================================
format of the ``Param``   element type in the kernel
========================  ============================================
fp32, tf32                float32
fp16                      float16
bf16                      uint16, the codes (decode: see below)
8-bit and smaller floats  uint8, the codes
int8, int32               int8, int32
========================  ============================================

A ``dim`` is int32, a ``scalar`` has the element type of its format. bfloat16 codes are turned into
numbers by integer operations (``libdevice.int_as_float(int32(code) << 16)``): Numba's own bfloat16
needs a capability of 8.0, and the lab's kernels run from 7.5.

Contraction is off (``-fma=0``), as for the raw kernels. Numba leaves arithmetic on float16 to
CUDA C++ functions that it links; here they are compiled with the lab's options and linked by
nvJitLink at the level of LTO-IR, so that the result is one PTX with every operation inline.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpulab.errors import BuildError
from gpulab.registry import NumbaBuild, Param
from gpulab.runtime import cache, nvjitlink, nvrtc, toolkit
from gpulab.runtime.toolkit import Capability, Toolkit

_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_DEBUG_INFO = re.compile(r'(!\{\s*i32 )2(, !"Debug Info Version", i32 3\s*\})')
_COMPILED: dict[str, NumbaPtx] = {}


@dataclass(frozen=True)
class NumbaPtx:
    """A Numba kernel compiled for one capability.

    Args:
        ptx: the text.
        entry: the kernel's mangled name in it.
        target: ``sm_89``.
        function: the Python function.
        types: the Numba types of its arguments.
    """

    ptx: str
    entry: str
    target: str
    function: Callable[..., None]
    types: tuple[Any, ...]


@lru_cache(maxsize=2)
def _numba(major: int) -> Any:
    """Import Numba with the libnvvm of the toolkit's major version.

    Raises:
        BuildError: Numba or libnvvm is not installed, or it is a version the lab does not know.
    """
    library = toolkit.nvvm(major)
    if library is not None and major != 13:
        # Both majors have one soname: whichever is loaded first is the one Numba finds.
        ctypes.CDLL(str(library))
    try:
        numba = importlib.import_module("numba")
        importlib.import_module("numba.cuda.cudadrv.nvvm").NVVM()
        _ = _compiler()
    except ImportError as error:
        raise BuildError(f"Numba is not installed ({error})", fix=toolkit.PIP_NUMBA) from None
    except AttributeError as error:
        raise BuildError(
            f"this numba-cuda is not one the lab knows: {error}", fix=toolkit.PIP_NUMBA
        ) from None
    except Exception as error:
        if type(error).__name__ not in ("NvvmSupportError", "DynamicLibNotFoundError"):
            raise
        raise BuildError(
            f"Numba finds no libnvvm: {first_line(error)}", fix=toolkit.PIP_NVVM
        ) from None
    return numba


def _compiler() -> Any:
    """Numba's compilation of a kernel down to its library of LLVM modules (not public API)."""
    return importlib.import_module("numba.cuda.compiler")._compile_pyfunc_with_fixup


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def argument_types(params: Sequence[Param], major: int = 13) -> tuple[Any, ...]:
    """The Numba types of a kernel's arguments; see the module docstring."""
    numba = _numba(major)
    from numba.np.numpy_support import from_dtype

    types = []
    for param in params:
        if param.role == "dim":
            types.append(numba.types.int32)
        else:
            element = from_dtype(param.dtype)
            is_array = param.role in ("in", "out")
            types.append(numba.types.Array(element, len(param.dims), "C") if is_array else element)
    return tuple(types)


def compile_numba(
    build: NumbaBuild,
    params: Sequence[Param],
    capability: Capability,
    *,
    kit: Toolkit | None = None,
) -> NumbaPtx:
    """Compile for ``capability``; the same function is compiled once a process.

    Args:
        build: makes the Python function.
        params: its parameter list.
        capability: (8, 9).
        kit: the toolchain; ``toolkit.default()`` unless told.

    Raises:
        BuildError: Numba cannot compile it (with the line of the .py), or a part is missing.
    """
    kit = kit or toolkit.default()
    _numba(kit.version[0])
    function = build.make()
    function = getattr(function, "py_func", function)  # a @cuda.jit object is accepted too
    types = argument_types(params, kit.version[0])
    name = cache.key(
        {
            "key": build.key,
            "function": fingerprint(function),
            "types": [str(t) for t in types],
            "capability": list(capability),
            "toolkit": str(kit.library),
        }
    )
    if name not in _COMPILED:
        _COMPILED[name] = _compile(function, types, capability, kit)
    return _COMPILED[name]


def fingerprint(function: Callable[..., Any]) -> str:
    """What decides a Python function's behaviour: its code, constants and closed-over values."""
    parts: list[str] = []

    def add(code: Any) -> None:
        parts.append(f"{code.co_filename}:{code.co_firstlineno} {code.co_code.hex()}")
        parts.append(f"{code.co_names} {code.co_varnames}")
        for constant in code.co_consts:
            if hasattr(constant, "co_code"):
                add(constant)
            else:
                parts.append(repr(constant))

    def add_function(each: Any, depth: int) -> None:
        each = getattr(each, "py_func", each)
        if not hasattr(each, "__code__"):
            parts.append(repr(each))
            return
        add(each.__code__)
        for cell in each.__closure__ or ():
            if depth:
                add_function(cell.cell_contents, depth - 1)

    add_function(function, 4)
    return cache.key({"parts": parts})


def _compile(
    function: Callable[..., None],
    types: tuple[Any, ...],
    capability: Capability,
    kit: Toolkit,
) -> NumbaPtx:
    from numba.core.errors import NumbaError

    target = nvrtc.target_name(kit, capability)
    cc = (int(target[3:]) // 10, int(target[3:]) % 10)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the line table of generated functions
            library, _ = _compiler()(
                function, types, device=False, lineinfo=True, cc=cc, abi="numba"
            )
            library._nvvm_options["fma"] = 0
            if library._linking_files:
                ptx = _link(library, cc, target, kit)
            else:
                ptx = "\n".join(library.get_asm_strs(cc=cc))
    except NumbaError as error:
        raise _build_error(error, function) from None
    return NumbaPtx(ptx, library._entry_name, target, function, types)


def _link(library: Any, cc: Capability, target: str, kit: Toolkit) -> str:
    """One PTX of the kernel and of the CUDA C++ functions that Numba wants linked to it."""
    # NVRTC and Numba give this module flag different merge behaviours; the linker refuses that.
    library._llvm_strs = [_DEBUG_INFO.sub(r"\g<1>1\g<2>", text) for text in library.llvm_strs]
    kernel = library.get_ltoir(cc=cc)
    modules = [("kernel", kernel if isinstance(kernel, bytes) else bytes(kernel.code))]
    for number, part in enumerate(sorted(library._linking_files, key=_source_text)):
        file = f"/numba-linked/{number}.cu"  # absolute: a relative name takes the working folder in
        modules.append((file, nvrtc.compile_lto(_source_text(part), file, target, kit)))
    return nvjitlink.link_lto(modules, target, major=kit.version[0]).image.decode()


def _source_text(part: Any) -> str:
    """The CUDA C++ of something Numba links.

    Raises:
        BuildError: it is not source.
    """
    if getattr(part, "kind", None) == "cu":
        data = part.data
        return data.decode() if isinstance(data, bytes) else str(data)
    raise BuildError(f"this kernel links {part}, which is not CUDA C++ source")


def _build_error(error: Exception, function: Callable[..., None]) -> BuildError:
    """Numba's report in one line, with the line of the .py it is about (else the kernel's)."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Numba opens with "Failed in cuda mode pipeline (step: ...)"; what follows is the reason.
    reason = next((line for line in lines if not line.startswith("Failed in")), text)
    call = next((line[4:] for line in lines if line.startswith(">>> ")), None)
    if call and reason.endswith("for signature:"):
        reason = f"{reason} {call}"
    file, line = function.__code__.co_filename, function.__code__.co_firstlineno
    location = getattr(error, "loc", None)
    if location is not None and getattr(location, "line", None):
        line = location.line
    elif places := list(_PLACE.finditer(text)):
        line = int(places[-1]["line"])
    return BuildError(f"{file}:{line}: {reason}", file=file, line=line, log=text)
