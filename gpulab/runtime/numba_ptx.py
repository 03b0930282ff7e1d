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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpulab.errors import BuildError
from gpulab.registry import NumbaBuild, Param
from gpulab.runtime import cache, nvjitlink, nvrtc, toolkit
from gpulab.runtime.fingerprint import fingerprint
from gpulab.runtime.toolkit import Capability, Toolkit

_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_DEBUG_INFO = re.compile(r'(!\{\s*i32 )2(, !"Debug Info Version", i32 3\s*\})')
_BLOCK_BOUND = re.compile(r'!"maxntidx", i32 \d+')
_COMPILED: dict[str, NumbaPtx] = {}
_LOWERED: dict[str, Any] = {}
"""Numba's libraries of LLVM modules, from which it emits PTX for any capability."""


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
    store: cache.Store | None = None,
) -> NumbaPtx:
    """Compile for ``capability``; the same function is compiled once a process.

    Args:
        build: makes the Python function.
        params: its parameter list.
        capability: (8, 9).
        kit: the toolchain; ``toolkit.default()`` unless told.
        store: where the PTX is kept for other processes; nowhere unless told.

    Raises:
        BuildError: Numba cannot compile it (with the line of the .py), or a part is missing.
    """
    kit = kit or toolkit.default()
    numba = _numba(kit.version[0])
    function = build.make()
    function = getattr(function, "py_func", function)  # a @cuda.jit object is accepted too
    types = argument_types(params, kit.version[0])
    target = nvrtc.target_name(kit, capability)
    made_of = fingerprint(function)
    facts = {
        "function": made_of.digest,
        "types": [str(t) for t in types],
        "bounds": list(build.bounds or ()),
        "cluster": build.cluster,
        "toolkit": kit.stamp,
        "libnvvm": _stamp(toolkit.nvvm(kit.version[0])),
        "nvjitlink": list(nvjitlink.version(kit.version[0]) or ()),
        "numba": [numba.__version__, version("numba-cuda")],
        "compiled by": _stamp(Path(__file__)),
    }
    name = cache.key({**facts, "target": target})
    if name in _COMPILED:
        return _COMPILED[name]
    store = store if made_of.complete else None
    if store is not None and (found := store.get(name)) is not None:
        ptx, entry = found[0]["kernel.ptx"].decode(), str(found[1]["entry"])
    else:
        ptx, entry = _compile(function, types, target, kit, cache.key(facts), build)
        if store is not None:
            notes = {"entry": entry, "source": function.__code__.co_filename, "name": build.key}
            cache.publish(store, name, {"kernel.ptx": ptx.encode()}, notes)
    _COMPILED[name] = NumbaPtx(ptx, entry, target, function, types)
    return _COMPILED[name]


def _stamp(file: Path | None) -> list[str | int]:
    if file is None:
        return []
    status = file.stat()
    return [str(file), status.st_size, status.st_mtime_ns]


def _compile(
    function: Callable[..., None],
    types: tuple[Any, ...],
    target: str,
    kit: Toolkit,
    lowering: str,
    build: NumbaBuild,
) -> tuple[str, str]:
    """PTX and entry. Typing and lowering, nine tenths of the time, are done once for all targets:
    from 7.5 on Numba's front end does not look at the capability (a test compares the two ways)."""
    from numba.core.errors import NumbaError

    cc = (int(target[3:]) // 10, int(target[3:]) % 10)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the line table of generated functions
            if lowering not in _LOWERED:
                with functions_for(cc):
                    _LOWERED[lowering] = _compiler()(
                        function,
                        types,
                        device=False,
                        lineinfo=True,
                        cc=cc,
                        abi="numba",
                        launch_bounds=build.bounds,
                    )[0]
                _fix_cluster(_LOWERED[lowering], build.cluster)
            library = _LOWERED[lowering]
            library._nvvm_options["fma"] = 0
            if library._linking_files:
                ptx = _link(library, cc, target, kit)
            else:
                ptx = "\n".join(library.get_asm_strs(cc=cc))
    except NumbaError as error:
        raise _build_error(error, function) from None
    return ptx, str(library._entry_name)


@contextmanager
def functions_for(capability: Capability) -> Iterator[None]:
    """Numba compiles device functions for the current card, and there may be none: it is told the
    capability instead."""
    dispatcher: Any = importlib.import_module("numba.cuda.dispatcher")
    ask, card = dispatcher.get_current_device, SimpleNamespace(compute_capability=capability)
    dispatcher.get_current_device = lambda: card
    try:
        yield
    finally:
        dispatcher.get_current_device = ask


def _fix_cluster(library: Any, blocks: int) -> None:
    """Have the kernel run in clusters of so many blocks along x, for which Numba has no option: a
    property beside the bound of its blocks (NVVM IR, "Global Property Annotation")."""
    if blocks > 1:
        both = rf'\g<0>, !"cluster_dim_x", i32 {blocks}'
        library._llvm_strs = [_BLOCK_BOUND.sub(both, text) for text in library.llvm_strs]


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
