"""The process that compiles and runs one submission, and knows nothing else.

It is told what to compile, what to launch and with which inputs, and sends back raw outputs. Seeds,
references, expected results and the verdict stay with the judge. Standard output belongs to the
protocol under a private descriptor; whatever a submission prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpulab.check import confine
from gpulab.check.wire import Arrays, Message, WireError, octets, pack, unpack
from gpulab.errors import BuildError, FaultError, GpulabError
from gpulab.registry import LaunchPlan, Param

PRINTED_BYTES = 2000
TEXT, LONG_LINE = 20000, 300
MACROS = (
    "INFINITY=__int_as_float(0x7f800000)", "NAN=__int_as_float(0x7fffffff)",
    "FLT_MAX=3.402823466e+38f", "FLT_MIN=1.175494351e-38f", "FLT_EPSILON=1.192092896e-07f",
    "INT_MAX=2147483647", "INT_MIN=(-2147483647-1)",
)  # fmt: skip
"""What nvcc's host headers define and learners use."""
BELOW = ("crt", "cccl", "cooperative_groups", "cooperative_groups/details")
"""Folders of the CUDA headers whose files mma.h and cooperative_groups.h include by other names."""


class Worker:
    """Answers one message at a time.

    Args:
        scratch: the only folder it may write.
    """

    def __init__(self, scratch: Path) -> None:
        from gpulab.runtime.cache import Store

        self.scratch = scratch
        self.store = Store(scratch / "cache")
        self.bench: Any = None
        self.memory_bytes: int | None = None

    def answer(self, message: Message, arrays: Arrays) -> tuple[Message, Arrays]:
        """One command; a GpulabError becomes an ``error`` of the answer."""
        commands: dict[str, Callable[[Message, Arrays], tuple[Message, Arrays]]] = {
            "confine": self.confine,
            "compile": self.compile,
            "open": self.open,
            "build": lambda m, a: self.bench.build(m),
            "run": lambda m, a: self.bench.run(m, a),
            "scramble": lambda m, a: self.bench.scramble(m),
            "time": lambda m, a: self.bench.time(m, a),
        }
        try:
            return commands[message["do"]](message, arrays)
        except MemoryError:
            limit = FaultError("it ran out of the memory limit of a submission", fault="memory")
            return {"error": limit.to_json()}, {}
        except GpulabError as error:
            return {"error": _plain(error.to_json())}, {}

    def confine(self, message: Message, _: Arrays) -> tuple[Message, Arrays]:
        """Give up what is not needed; the answer lists what holds.

        Everything that will be needed is loaded first.
        """
        from gpulab.runtime import cache, nvjitlink, nvrtc, toolkit

        card = message["device"] == "cuda"
        kit = toolkit.default()
        nvrtc.supported(kit)
        nvjitlink.version(kit.version[0])
        loaded: list[Any] = [cache, *_builtins(kit.nvrtc)]
        if card:  # what the driver has when it is opened is free
            self.memory_bytes = int(message["memory_bytes"])
        else:
            confine.limit(int(message["memory_bytes"]))
        held = {"memory limit": True, "no network": confine.no_network()}
        if not card:  # a driver opens files of its own choosing
            from gpulab.runtime import emulated

            loaded.append(emulated)
            package = Path(__file__).resolve().parents[1]
            readable = [
                *{Path(sys.prefix), Path(sys.base_prefix), package},
                *(Path(p) for p in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")),
                *(Path(p) for p in ("/dev/null", "/dev/urandom")),
                *(package.parent / "raw_kernels",),
                *map(Path, message["readable"]),
                *kit.headers,
                kit.nvrtc.parent,
                Path(sysconfig.get_paths()["purelib"]),
            ]
            held["files"] = confine.read_only(readable, [self.scratch])
        return {"held": held}, {}

    def compile(self, message: Message, _: Arrays) -> tuple[Message, Arrays]:
        """CUDA C++ to PTX for a capability."""
        from gpulab.check import includes
        from gpulab.runtime import nvrtc, toolkit

        kit = toolkit.default()
        below = [folder / name for folder in kit.headers for name in BELOW]
        kit = replace(kit, headers=(*kit.headers, *(f for f in below if f.is_dir())))
        text, name = str(message["text"]), str(message["name"])
        text = includes.check(text, name, kit.headers)
        made = nvrtc.compile_text(
            text + str(message["appended"]),
            name,
            str(message["entry"]),
            _capability(message),
            defines=MACROS,
            contract=True,  # as nvcc does unless told otherwise
            kit=kit,
            lab_headers=False,
        )
        log = made.log[:PRINTED_BYTES]
        return {"ptx": made.ptx, "entry": made.lowered, "log": log}, {}

    def open(self, message: Message, _: Arrays) -> tuple[Message, Arrays]:
        """Choose the device."""
        from gpulab.check.workbench import Workbench

        self.bench = Workbench(str(message["device"]), _capability(message), self.store)
        if self.memory_bytes is not None:
            confine.limit(self.memory_bytes)
        return self.bench.describe(), {}


def _builtins(library: Path) -> list[ctypes.CDLL]:
    """The library that an NVRTC opens by its bare name when it first compiles.

    Where NVRTC is not told to look beside itself it is found through the loader's cache.
    """
    found = []
    for path in library.resolve().parent.glob("libnvrtc-builtins.so.*"):
        with contextlib.suppress(OSError):
            found.append(ctypes.CDLL(str(path)))
    return found


def _capability(message: Message) -> tuple[int, int]:
    major, minor = message["capability"]
    return int(major), int(minor)


def params_from(listed: list[list[Any]]) -> tuple[Param, ...]:
    """Parameters as ``params_to`` wrote them."""
    return tuple(Param(n, role, fmt, tuple(dims)) for n, role, fmt, dims in listed)


def params_to(params: tuple[Param, ...]) -> list[list[Any]]:
    """Parameters as JSON."""
    return [[p.name, p.role, p.format, list(p.dims)] for p in params]


def plan_from(listed: list[Any]) -> LaunchPlan:
    """A launch plan as ``[grid, block, shared]``."""
    grid, block, shared = listed
    return LaunchPlan(tuple(grid), tuple(block), int(shared))


def digest(array: np.ndarray[Any, Any]) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(octets(array)).hexdigest()


def _plain(value: Any) -> Any:
    """Only what JSON has; long texts are cut."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, str):
        return _short(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _short(text: str) -> str:
    """A text of up to TEXT characters; in a longer one lines are cut first, so that more remain."""
    if len(text) <= TEXT:
        return text
    return "\n".join(line[:LONG_LINE] for line in text.split("\n"))[: 5 * TEXT]


def python_to_ptx(message: Message) -> Message:
    """Import a Numba submission and compile its kernel; the whole life of a confined child."""
    import importlib.util

    from gpulab.registry import NumbaBuild
    from gpulab.runtime import numba_ptx

    path, entry = Path(message["path"]), str(message["entry"])
    capability = _capability(message)
    params = params_from(message["params"])
    numba_ptx.argument_types(params)  # loads Numba before the submission can
    spec = importlib.util.spec_from_file_location("submission", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with numba_ptx.functions_for(capability):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _import_error(path, error) from None
    kernel = getattr(module, entry, None)
    if kernel is None:
        kernels = [name for name, value in vars(module).items() if hasattr(value, "py_func")]
        there = f"; it has {', '.join(kernels)}" if kernels else ""
        raise BuildError(
            f"{path.name}: there is no kernel {entry}{there}",
            fix=f"write @cuda.jit above def {entry}({', '.join(p.name for p in params)}):",
        )
    function = getattr(kernel, "py_func", kernel)
    if not callable(function) or not hasattr(function, "__code__"):
        raise BuildError(f"{entry} is a {type(kernel).__name__}, not a @cuda.jit function")
    wanted = [p.name for p in params]
    taken = list(function.__code__.co_varnames[: function.__code__.co_argcount])
    if len(taken) != len(wanted):
        raise BuildError(
            f"{path.name}:{function.__code__.co_firstlineno}: {entry} takes {len(taken)} "
            f"arguments ({', '.join(taken)}), the exercise passes {len(wanted)}",
            fix=f"def {entry}({', '.join(wanted)}):",
            file=path.name,
            line=function.__code__.co_firstlineno,
        )
    made = numba_ptx.compile_numba(NumbaBuild(lambda: function, entry), params, capability)
    return {"ptx": made.ptx, "entry": made.entry, "log": ""}


def _import_error(path: Path, error: BaseException) -> BuildError:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    what = re.sub(r" \(/[^()]*\)$", "", f"{type(error).__name__}: {error}")
    fix = None
    if "CUDA" in what or "cuda" in type(error).__module__:
        fix = "the file may only define kernels: remove launches, cuda.to_device, signatures"
    if isinstance(error, ImportError):
        fix = _type_to_import(error) or "import Numba, NumPy and the standard library alone"
    where = f"{path.name}:{line}" if line else path.name
    return BuildError(
        f"{where}: importing it fails: {what[:500]}", fix=fix, file=path.name, line=line
    )


def _type_to_import(error: ImportError) -> str | None:
    """What to write instead of ``from numba import float16``: not all types are in ``numba``."""
    import numba.cuda.types

    name = re.match(r"cannot import name '(\w+)' from 'numba[.\w]*'", str(error))
    if name is None or not hasattr(numba.cuda.types, name[1]):
        return None
    return f"write: from numba.cuda.types import {name[1]}"


def _streams() -> tuple[Callable[[int], bytes], Callable[[bytes], None]]:
    """The protocol's ends; standard output and input are then nobody's."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    reader = os.fdopen(incoming, "rb")

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(outgoing, view) :]

    return reader.read, write


def main(kind: str, scratch: str, parent: int) -> None:
    """``serve``: answer until the judge hangs up. ``python``: one answer, then the end."""
    if kind == "serve":  # inside bubblewrap the parent is outside the namespace
        confine.die_with_parent(parent)
    read, write = _streams()
    if kind == "python":
        message, _ = unpack(read)
        if (memory := message.get("memory_bytes")) is not None:
            confine.limit(int(memory))
        try:
            answer = python_to_ptx(message)
        except GpulabError as error:
            answer = {"error": _plain(error.to_json())}
        write(pack(answer))
        os._exit(0)
    worker = Worker(Path(scratch))
    while True:
        try:
            message, arrays = unpack(read)
        except WireError:
            os._exit(0)
        write(pack(*worker.answer(message, arrays)))
