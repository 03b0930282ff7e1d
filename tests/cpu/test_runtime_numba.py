"""Numba kernels as PTX without a card, and their assembly by nvJitLink."""

import builtins
import re
import sys

import numpy as np
import pytest

from gpulab.errors import BuildError
from gpulab.registry import NumbaBuild, Param
from gpulab.runtime import assembly, numba_ptx, nvjitlink, resources
from gpulab.runtime.cache import Store
from gpulab.runtime.numba_ptx import argument_types, compile_numba

CAPABILITIES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


def params(format_):
    return (
        Param("a", "in", format_, ("m", "k")),
        Param("c", "out", "fp32", ("m",)),
        Param("m", "dim", "int32"),
        Param("k", "dim", "int32"),
    )


def sum_rows():
    from numba import cuda, float32

    def kernel(a, c, m, k):
        row = cuda.grid(1)
        if row < m:
            total = float32(0)
            for i in range(k):
                total = total + a[row, i] * a[row, i]
            c[row] = total

    return kernel


def half_axpy():
    from numba import cuda

    def kernel(a, c, m, k):
        i = cuda.grid(1)
        if i < m:
            a[i, 0] = a[i, 1] * a[i, 2] + a[i, 0]

    return kernel


def entry_head(made):
    return re.search(rf"\.entry {re.escape(made.entry)}\((.*?)\)", made.ptx, re.DOTALL)[1]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nothing_is_contracted(capability):
    """Numba's default would fuse the product into the sum."""
    made = compile_numba(NumbaBuild(sum_rows, "sum_rows"), params("fp32"), capability)
    assert made.target == "sm_{}{}".format(*capability)
    assert f".target {made.target}" in made.ptx
    assert not re.search(r"^\s*fma\.", made.ptx, re.MULTILINE)
    assert re.search(r"^\s*(mul|add)\.rn\.f32", made.ptx, re.MULTILINE)
    assert not re.search(r"^\s*(mul|add)\.f32", made.ptx, re.MULTILINE)
    assert ".ftz" not in made.ptx


def test_parameters_are_those_the_lab_packs():
    made = compile_numba(NumbaBuild(sum_rows, "sum_rows"), params("fp32"), (8, 9))
    kinds = re.findall(r"\.param \.(\w+)", entry_head(made))
    assert kinds == ["u64"] * 9 + ["u64"] * 7 + ["u32", "u32"]


@pytest.mark.parametrize(
    ("format_", "element"),
    [
        ("fp32", "float32"),
        ("fp16", "float16"),
        ("bf16", "uint16"),
        ("e4m3", "uint8"),
        ("e5m2", "uint8"),
        ("int8", "int8"),
    ],
)
def test_element_types_follow_the_storage(format_, element):
    array, _, m, _ = argument_types(params(format_))
    assert str(array) == f"array({element}, 2d, C)"
    assert str(m) == "int32"
    scalar = argument_types((Param("x", "scalar", format_),))
    assert str(scalar[0]) == element


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_half_arithmetic_is_inline_in_one_ptx(capability):
    made = compile_numba(NumbaBuild(half_axpy, "half"), params("fp16"), capability)
    assert ".extern" not in made.ptx
    assert "call" not in made.ptx
    assert "mul.f16" in made.ptx
    assert "add.f16" in made.ptx
    linked = nvjitlink.assemble(made.ptx, made.target, major=13)
    used = resources.parse(linked.log, made.entry, made.ptx)
    assert used.stack_bytes == 0  # operands are in registers, not passed through memory


def tiles():
    from numba import cuda, float32

    def kernel(a, c, m, k):
        first = cuda.shared.array((8, 16), float32)
        second = cuda.shared.array(32, float32)
        i = cuda.threadIdx.x
        first[i % 8, i % 16] = a[i, 0]
        second[i] = a[i, 1]
        cuda.syncthreads()
        c[i] = first[(i + 1) % 8, i % 16] + second[i ^ 1]

    return kernel


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_shared_arrays_are_counted_without_what_the_system_reserves(capability, tmp_path):
    code = assembly.prepare(
        NumbaBuild(tiles, "tiles"), params("fp32"), capability, store=Store(tmp_path)
    )
    assert code.resources.shared_bytes == 4 * (8 * 16 + 32)


def test_half_arithmetic_is_not_contracted_by_ptxas_either():
    made = compile_numba(NumbaBuild(half_axpy, "half"), params("fp16"), (8, 9))
    kept = nvjitlink.assemble(made.ptx, "sm_89", major=13)
    fused = nvjitlink.assemble(made.ptx, "sm_89", major=13, contract=True)
    assert kept.image != fused.image


def test_lines_are_those_of_the_python_file():
    made = compile_numba(NumbaBuild(sum_rows, "sum_rows"), params("fp32"), (8, 9))
    assert f'"{__file__}"' in made.ptx
    first = made.function.__code__.co_firstlineno
    lines = {int(line) for line in re.findall(r"\.loc\s+1 (\d+)", made.ptx)}
    assert first + 5 in lines  # the line of the sum


def test_the_same_function_is_compiled_once():
    one = compile_numba(NumbaBuild(sum_rows, "sum_rows"), params("fp32"), (8, 9))
    two = compile_numba(NumbaBuild(sum_rows, "sum_rows"), params("fp32"), (8, 9))
    assert one is two


def nameless(made):
    """The PTX with the numbers that Numba counts up in a process replaced by their order."""
    text = made.ptx.replace(made.entry.removeprefix("_ZN"), "ENTRY")
    order = list(dict.fromkeys(re.findall(r"_cudapy_\w+", text)))
    return re.sub(r"_cudapy_\w+", lambda name: f"shared{order.index(name[0])}", text)


@pytest.mark.parametrize(("make", "format_"), [(tiles, "fp32"), (half_axpy, "fp16")])
def test_what_is_lowered_once_gives_each_target_its_own_code(make, format_, monkeypatch):
    """Lowered for 7.5 or for 12.0, a kernel has the same PTX for 12.0, and the same for 7.5."""
    texts = []
    for order in ([(7, 5), (12, 0)], [(12, 0), (7, 5)]):
        monkeypatch.setattr(numba_ptx, "_LOWERED", {})
        monkeypatch.setattr(numba_ptx, "_COMPILED", {})
        made = {c: compile_numba(NumbaBuild(make, "x"), params(format_), c) for c in order}
        assert len(numba_ptx._LOWERED) == 1
        texts.append({c: nameless(m) for c, m in made.items()})
    assert texts[0] == texts[1]
    assert ".target sm_120" in texts[0][12, 0]


def test_another_process_reads_the_ptx_and_compiles_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    monkeypatch.setattr(numba_ptx, "_COMPILED", {})
    first = compile_numba(NumbaBuild(tiles, "t"), params("fp32"), (8, 9), store=store)
    for name in ("_COMPILED", "_LOWERED"):  # what a new process begins with
        monkeypatch.setattr(numba_ptx, name, {})
    monkeypatch.setattr(numba_ptx, "_compile", None)
    again = compile_numba(NumbaBuild(tiles, "t"), params("fp32"), (8, 9), store=store)
    assert (again.ptx, again.entry) == (first.ptx, first.entry)
    with pytest.raises(TypeError):  # not kept for another target: it would be compiled
        compile_numba(NumbaBuild(tiles, "t"), params("fp32"), (8, 0), store=store)


def test_one_key_does_not_mix_two_kernels():
    def make(factor):
        def kernel(a, c, m, k):
            c[0] = a[0, 0] * factor

        return kernel

    texts = {
        compile_numba(NumbaBuild(lambda f=f: make(f), "same key"), params("fp32"), (8, 9)).ptx
        for f in (np.float32(3), np.float32(5))
    }
    assert len(texts) == 2


def test_a_decorated_function_is_taken_too():
    from numba import cuda

    made = compile_numba(NumbaBuild(lambda: cuda.jit(sum_rows()), "jit"), params("fp32"), (8, 9))
    assert made.function.__name__ == "kernel"


def test_an_error_names_the_line_of_the_kernel():
    def make():
        def kernel(a, c, m, k):
            c[0] = a.no_such_thing

        return kernel

    with pytest.raises(BuildError, match="Unknown attribute 'no_such_thing'") as caught:
        compile_numba(NumbaBuild(make, "bad"), params("fp32"), (8, 9))
    assert caught.value.details["file"] == __file__
    assert caught.value.details["line"] == make().__code__.co_firstlineno + 1
    assert "\n" not in caught.value.message


def test_an_unresolved_name_is_an_error_with_the_kernels_line():
    def make():
        def kernel(a, c, m, k):
            c[0] = not_defined_anywhere(a)  # noqa: F821

        return kernel

    with pytest.raises(BuildError, match="not_defined_anywhere") as caught:
        compile_numba(NumbaBuild(make, "bad"), params("fp32"), (8, 9))
    assert caught.value.details["file"] == __file__


def test_no_numba_names_the_command(monkeypatch):
    numba_ptx._numba.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    real = builtins.__import__
    with pytest.raises(BuildError, match="Numba is not installed") as caught:
        compile_numba(NumbaBuild(sum_rows, "sum_rows"), params("fp32"), (8, 9))
    assert "numba-cuda" in caught.value.fix
    assert builtins.__import__ is real
    numba_ptx._numba.cache_clear()
