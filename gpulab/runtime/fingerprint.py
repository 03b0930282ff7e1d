"""What decides a Python kernel's behaviour, as a digest that holds between processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from gpulab.runtime import cache

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_VERSIONED = ("numba", "llvmlite", "numpy", "math", "operator", "builtins")
"""Modules whose contents their own version stands for."""


def _versioned(module: str | None) -> bool:
    return (module or "").split(".")[0] in _VERSIONED


@dataclass(frozen=True)
class Fingerprint:
    """The digest of a function.

    Args:
        digest: differs when the function's code, its place, its constants, closed-over values or
            any function or constant that it reaches through global names differs.
        complete: nothing that it reaches is known only by its address; otherwise the digest means
            nothing to another process.
    """

    digest: str
    complete: bool


def _name(module: ModuleType) -> str:
    """A module's name. ``numba.types`` stands for ``numba.core.types``: which of the two an import
    gives depends on what was imported before."""
    return module.__name__.replace("numba.core.", "numba.")


def python_function(value: Any) -> Any:
    """The function in a ``@cuda.jit`` object or a Numba intrinsic; anything else as it is."""
    return getattr(value, "py_func", getattr(value, "__wrapped__", value))


@dataclass
class _Walk:
    parts: list[str] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    complete: bool = True

    def value(self, name: str, value: Any) -> None:
        function = python_function(value)
        if hasattr(function, "__code__") and not _versioned(function.__module__):
            self.parts.append(f"{name}: function")
            self.function(function)
        elif isinstance(value, ModuleType):
            self.parts.append(f"{name}: module {_name(value)}")
        elif type(value) in (list, tuple):  # functions may be in it, whose repr says little
            self.parts.append(f"{name}: {type(value).__name__} of {len(value)}")
            for number, each in enumerate(value):
                self.value(f"{name}[{number}]", each)
        elif isinstance(value, type) or _versioned(getattr(value, "__module__", None)):
            text = f"{getattr(value, '__module__', '')} {_ADDRESS.sub('', repr(value))}"
            self.parts.append(f"{name}: {text}")
        else:
            text = repr(value)
            self.complete = self.complete and not _ADDRESS.search(text)
            self.parts.append(f"{name}: {text}")

    def code(self, code: CodeType, names: Mapping[str, Any]) -> None:
        self.parts.append(f"{code.co_filename}:{code.co_firstlineno} {code.co_code.hex()}")
        self.parts.append(f"{list(code.co_lines())} {code.co_names} {code.co_varnames}")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.code(constant, names)
            else:
                self.parts.append(repr(constant))
        for name in code.co_names:
            if name not in names:
                continue
            value = names[name]
            self.value(name, value)
            if isinstance(value, ModuleType) and not _versioned(value.__name__):
                for attribute in code.co_names:
                    if attribute in vars(value):
                        self.value(f"{name}.{attribute}", vars(value)[attribute])

    def function(self, function: Callable[..., Any]) -> None:
        if any(function is each for each in self.seen):
            self.parts.append(f"number {[id(each) for each in self.seen].index(id(function))}")
            return
        self.seen.append(function)
        self.code(function.__code__, function.__globals__)
        self.parts.append(repr(function.__defaults__))
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                self.value(name, cell.cell_contents)
            except ValueError:  # an empty cell
                self.parts.append(f"{name}: unset")


def fingerprint(function: Callable[..., Any]) -> Fingerprint:
    """The fingerprint of a function; a ``@cuda.jit`` object counts as the function in it."""
    walk = _Walk()
    walk.function(python_function(function))
    return Fingerprint(cache.key({"parts": walk.parts}), walk.complete)
