"""The digest of a Python kernel: it follows whatever the kernel's behaviour depends on."""

from __future__ import annotations

import subprocess
import sys
import types

from gpulab.runtime.fingerprint import fingerprint

SOURCE = """
import helper
SCALE = 2
def inner(x):
    return x + 1
def kernel(a):
    a[0] = inner(a[0]) * SCALE + helper.FACTOR
"""


def kernel(source=SOURCE, factor=3, **replaced):
    helper = types.ModuleType("helper")
    helper.FACTOR = factor
    names = {"__name__": "mine", "__builtins__": {"__import__": lambda *_: helper}}
    exec(compile(source, "mine.py", "exec"), names)
    names.update(replaced)
    return names["kernel"]


def test_one_source_has_one_digest():
    assert fingerprint(kernel()) == fingerprint(kernel())
    assert fingerprint(kernel()).complete


def test_every_thing_that_it_reaches_counts():
    changed = {
        "code": kernel(SOURCE.replace("* SCALE", "- SCALE")),
        "a function by its global name": kernel(SOURCE.replace("x + 1", "x + 2")),
        "a global constant": kernel(SOURCE.replace("SCALE = 2", "SCALE = 4")),
        "a constant of a module": kernel(factor=5),
        "its line": kernel("\n" + SOURCE),
    }
    digests = {name: fingerprint(f).digest for name, f in changed.items()}
    digests["unchanged"] = fingerprint(kernel()).digest
    assert len(set(digests.values())) == len(digests)


def test_closed_over_values_and_defaults_count():
    def make(factor, start=1):
        def kernel(a, first=start):
            a[0] = factor * first

        return kernel

    assert fingerprint(make(2)).digest == fingerprint(make(2)).digest
    assert len({fingerprint(f).digest for f in (make(2), make(3), make(2, 5))}) == 3


def test_which_of_two_functions_is_meant_counts():
    def f(x):
        return x

    def g(x):
        return -x

    def make(one, two, three):
        def kernel(a):
            a[0] = one(a[0]) + two(a[1]) + three(a[2])

        return kernel

    digests = {fingerprint(make(*each)).digest for each in ((f, g, f), (f, g, g), (g, f, f))}
    assert len(digests) == 3


def test_what_is_known_by_its_address_alone_is_not_for_other_processes():
    thing = object()
    assert not fingerprint(kernel(inner=thing)).complete


def test_the_digest_holds_between_processes():
    code = (
        "from gpulab.kernels.softmax import numba_row;"
        "from gpulab import registry;"
        "from gpulab.runtime.fingerprint import fingerprint;"
        "c = next(iter(registry.cases('softmax', backend='numba')));"
        "print(fingerprint(c.spec.build(c.variant, (8, 9), {'rows': 8, 'cols': 8}).make()))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
    assert "complete=True" in runs.pop()


def test_what_an_intrinsic_closes_over_counts():
    """Both formats are bytes: the kernels' own code and types are the same, their decoders not."""
    from gpulab.kernels.numba_pack import pack

    def reading(fmt, count):
        load = pack(fmt, count).values

        def kernel(a):
            a[0] = load(a[0])

        return kernel

    found = [fingerprint(reading(*each)) for each in (("e4m3", 2), ("e5m2", 2), ("e5m2", 1))]
    assert len({each.digest for each in found}) == 3
    assert all(each.complete for each in found)


def test_functions_in_a_list_count():
    from gpulab.kernels.numba_async import wait

    def make(before):
        def kernel():
            return before

        return fingerprint(kernel)

    one, other = make([wait(1), wait(2)]), make([wait(1), wait(3)])
    assert one.digest != other.digest
    assert one.complete
    assert one == make([wait(1), wait(2)])


def test_numbas_two_names_of_a_module_are_one():
    """Which of them an import gives depends on what was imported before."""

    def of(module):
        return fingerprint(kernel(SCALE=module)).digest

    alias, core, other = map(types.ModuleType, ("numba.types", "numba.core.types", "numba.cuda"))
    assert of(alias) == of(core) != of(other)
