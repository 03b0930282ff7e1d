"""PTX text to instructions: lines, source places, what is left out and what is refused."""

from __future__ import annotations

import pytest

from gpulab.emulator.machine import Machine
from gpulab.emulator.ptx.nodes import Instr, Location
from gpulab.emulator.ptx.parser import parse
from gpulab.errors import BuildError

HEAD = '.version 9.0\n.target sm_89, debug\n.file 1 "a.cu"\n'


def instructions(body: str, after: str = "") -> list[Instr]:
    text = f"{HEAD}.entry k()\n{{\n.reg .b32 %r<4>;\n{body}\nret;\n}}\n{after}"
    found = parse(text).functions["k"].body
    assert found is not None
    return [item for item in found if isinstance(item, Instr)]


def test_an_instruction_knows_its_ptx_line_and_its_text() -> None:
    body = "mov.u32 %r1, 7; // set\n/* two\nlines */ add.u32\n  %r2,\t%r1, 0x10;"
    move, add, _ = instructions(body)
    assert (move.ptx_line, move.text) == (7, "mov.u32 %r1, 7;")
    assert (add.ptx_line, add.text) == (9, "add.u32 %r2, %r1, 0x10;")


def test_a_source_line_holds_until_the_next_and_names_what_it_was_inlined_at() -> None:
    inlined = "\t.loc\t2 12 3, function_name $L__info_string0, inlined_at 1 40 5"
    body = f".loc 1 40 5\nmov.u32 %r1, 1;\n{inlined}\nmov.u32 %r2, 1;\n.loc 2 0 3\nmov.u32 %r3, 1;"
    first, second, third, _ = instructions(body, after='.file 2 "b.cuh"')
    assert first.location == Location("a.cu", 40)
    assert second.location == Location("b.cuh", 12, (("a.cu", 40),))
    assert third.location == second.location  # line 0 is the compiler's own code


@pytest.mark.parametrize(
    "section",
    [
        ".section .debug_str\n{\n$L__info_string0:\n.b8 95,90\n.b8 0\n}\n",
        "\t.section  .debug_info { .b32 $L0 }\n",
    ],
)
def test_debug_sections_are_left_out_and_their_lines_counted(section: str) -> None:
    text = f"{HEAD}{section}.entry k()\n{{\nret;\n}}\n{section}"
    body = parse(text).functions["k"].body
    assert body is not None
    assert isinstance(body[0], Instr)
    assert body[0].ptx_line == text.split("ret;")[0].count("\n") + 1


@pytest.mark.parametrize(
    ("body", "line", "word"),
    [
        ("mov.u32 %r1, 7;\nmov.u32 %r2, ?;", 8, "unexpected '?'"),
        (".loc 1\nmov.u32 %r1, 7;", 8, "no source line"),
        ("mov.u32 %r1, 7", 8, "expected ';'"),
        ("mov.u32 %nowhere, 7;\nbra away;", 8, "unknown label away"),
        (".strange 3;", 7, "unknown directive .strange"),
        ("mov.u32 %r1, -ret;", 7, "expected a literal"),
        (".shared .b8 a[x];", 7, "expected a number"),
        (".global .b8 a[4];", 7, "unknown directive .global"),
        (".reg .b33 %z;", 7, "registers of type .b33"),
    ],
)
def test_what_is_not_ptx_is_refused_with_its_line(body: str, line: int, word: str) -> None:
    with pytest.raises(BuildError, match=word.replace("?", r"\?")) as raised:
        instructions(body)
    assert raised.value.details["ptx_line"] == line


def test_a_text_that_ends_amid_a_function_is_refused() -> None:
    with pytest.raises(BuildError, match="ends in the middle"):
        parse(f"{HEAD}.entry k()\n{{\nret;\n")


def test_a_text_without_a_version_is_no_ptx() -> None:
    with pytest.raises(BuildError, match="not PTX"):
        parse(".entry k()\n{\nret;\n}\n")


@pytest.mark.parametrize(
    "instruction",
    [
        "bra.weird DONE", "ret.weird", "exit.uni", "bar.sync", "bar.frob 1", "bar.sync.weird 0",
        "bar.arrive 1", "bar.red.min.u32 %r1, 0, %p", "barrier.cluster.arrive.acquire",
        "barrier.cluster.wait.aligned.weird", "bar.warp.sync.weird 1",
        "cp.async.wait_group.weird 0",
        "cp.async.commit_group.weird", "cvta.weird.to.global.u64 %rd, %rd", "activemask.b64 %rd",
        "selp.weird.b32 %r1, %r1, %r1, %p", "nanosleep.u64 5", "prefetch.weird [%rd]", "trap.weird",
        "griddepcontrol.weird", "setmaxnreg.weird.sync.aligned.u32 24", "pmevent.weird 1",
    ],
)  # fmt: skip
def test_a_word_that_nothing_stands_for_is_refused_before_a_launch(instruction: str) -> None:
    text = (
        f"{HEAD}.entry k()\n{{\n.reg .b32 %r<4>;\n.reg .b64 %rd;\n.reg .pred %p;\n"
        f".loc 1 40 5\n{instruction};\nDONE:\nret;\n}}\n"
    )
    with pytest.raises(BuildError, match="does not implement") as raised:
        Machine((9, 0)).load(text)
    assert raised.value.details["text"] == f"{instruction};"
    assert (raised.value.details["file"], raised.value.details["line"]) == ("a.cu", 40)


@pytest.mark.parametrize(
    "instruction",
    [
        "bra.uni DONE", "ret.uni", "exit", "bar.sync 0", "barrier.cta.sync.aligned 0, 32",
        "bar.cta.arrive 1, 64", "bar.red.and.pred %p, 0, %p",
        "barrier.red.aligned.popc.u32 %r1, 0, %p",
        "barrier.cluster.arrive.relaxed.aligned", "barrier.cluster.wait.acquire", "pmevent 1",
        "prefetch.global.L2 [%rd]", "griddepcontrol.wait",
    ],
)  # fmt: skip
def test_the_spellings_of_the_manual_load(instruction: str) -> None:
    text = (
        f"{HEAD}.entry k()\n{{\n.reg .b32 %r<4>;\n.reg .b64 %rd;\n.reg .pred %p;\n"
        f"{instruction};\nDONE:\nret;\n}}\n"
    )
    assert Machine((9, 0)).load(text).entries
