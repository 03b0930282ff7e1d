"""PTX text to a Module: module scope, function headers, .loc and .file.

Source: PTX ISA, chapters 4 (syntax), 5 (state spaces), 7 (functions), 11 (directives).
"""

from __future__ import annotations

from gpulab.emulator.ptx.body import BodyParser
from gpulab.emulator.ptx.cursor import Cursor
from gpulab.emulator.ptx.nodes import Function, Module, Variable
from gpulab.emulator.ptx.variables import parse_variables

_LINKAGE = {".visible", ".weak", ".common"}
_HEADER_NOTES = {
    ".maxnreg": 1, ".maxntid": 3, ".reqntid": 3, ".minnctapersm": 1, ".maxnctapersm": 1,
    ".noreturn": 0, ".explicitcluster": 0, ".reqnctapercluster": 3, ".maxclusterrank": 1,
    ".blocksareclusters": 0, ".abi_preserve": 1, ".abi_preserve_control": 1,
}  # fmt: skip
"""Header directives and how many numbers follow at most: resource hints, except ``.maxntid`` and
``.reqntid``, which bound the launch, and ``.reqnctapercluster``, the shape of a cluster."""


def parse(text: str) -> Module:
    """The module that ``text`` declares.

    Raises:
        BuildError: not PTX, or a construct that is not supported; with the PTX line and its text.
    """
    cursor = Cursor(text)
    module = Module()
    files = _files(cursor)
    while not cursor.done:
        _statement(cursor, module, files)
    if not module.version:
        cursor.fail("no .version directive: this is not PTX")
    return module


def _files(cursor: Cursor) -> dict[str, str]:
    """All ``.file`` directives; they may follow the code that uses them."""
    words = cursor.words
    return {
        words[i + 1]: words[i + 2].strip('"')
        for i, word in enumerate(words[:-2])
        if word == ".file"
    }


def _statement(cursor: Cursor, module: Module, files: dict[str, str]) -> None:
    extern = False
    while cursor.peek() in _LINKAGE or cursor.peek() == ".extern":
        extern |= cursor.take() == ".extern"
    word = cursor.take()
    if word == ".version":
        module.version = cursor.rest_of_line()[0]
    elif word == ".target":
        module.target = cursor.rest_of_line()[0]
    elif word in (".address_size", ".file"):
        cursor.rest_of_line()
    elif word == ".alias":
        alias, _, original = cursor.take(), cursor.take(), cursor.take()
        module.functions[alias] = module.functions[original]
        cursor.expect(";")
    elif word in (".global", ".const", ".shared"):
        for variable in parse_variables(cursor, word[1:], extern):
            module.variables[variable.name] = variable
        cursor.expect(";")
    elif word in (".entry", ".func"):
        function = _function(cursor, word == ".entry", files)
        known = module.functions.get(function.name)
        if known is None or known.body is None:
            module.functions[function.name] = function
    elif word == ".pragma":
        cursor.take()
        cursor.expect(";")
    elif word != ";":
        cursor.at -= 1
        cursor.fail(f"unknown statement {word}")


def _function(cursor: Cursor, is_entry: bool, files: dict[str, str]) -> Function:
    results: tuple[Variable, ...] = ()
    if cursor.peek() == "(":
        results = _parameters(cursor)
    function = Function(cursor.take(), is_entry, results=results)
    if cursor.peek() == "(":
        function.params = _parameters(cursor)
    while cursor.peek() in _HEADER_NOTES:
        word = cursor.take()
        numbers = [cursor.integer()] if _HEADER_NOTES[word] else []
        while cursor.accept(","):
            numbers.append(cursor.integer())
        if word in (".maxntid", ".reqntid"):
            function.max_threads = tuple(numbers)
        elif word == ".reqnctapercluster":
            x, y, z = (*numbers, 1, 1)[:3]
            function.cluster = (x, y, z)
    if cursor.accept(";"):
        return function
    BodyParser(cursor, function, files).parse()
    return function


def _parameters(cursor: Cursor) -> tuple[Variable, ...]:
    found: list[Variable] = []
    cursor.expect("(")
    while not cursor.accept(")"):
        word = cursor.take()
        if word == ".reg":
            cursor.fail("functions with .reg parameters are not supported")
        if word != ".param":
            cursor.fail(f"expected .param, got {word}")
        found += parse_variables(cursor, "param")
        cursor.accept(",")
    return tuple(found)
