"""The emulated device equals the card: digests recorded on a card are computed again here."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from gpulab import arch, registry
from gpulab.lab.equality import SIZES, digest_line, digests, run_of, sizes_of
from gpulab.runtime.emulated import EmulatedDevice

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "results" / "emulated_vs_card.jsonl"
IDENTITY = ("op", "kernel", "backend", "format", "accumulator", "output", "contract", "target")


def lines():
    groups = defaultdict(list)
    if RECORDED.exists():
        for text in RECORDED.read_text().splitlines():
            line = json.loads(text)
            groups[tuple(line.get(f, "") for f in IDENTITY)].append(line)
    return groups


GROUPS = lines()


def case_of(line):
    (found,) = [
        c
        for c in registry.cases(line["op"], kernel=line["kernel"], backend=line["backend"])
        if (c.variant.format, c.variant.accumulator, c.variant.output, c.variant.contract)
        == (line["format"], line["accumulator"], line["output"], line.get("contract", ""))
    ]
    return found


def compare(key, chosen):
    first = chosen[0]
    capability = arch.parse(first["environment"]["capability"])
    device = EmulatedDevice(capability, target=arch.parse(first["target"]))
    case = case_of(first)
    for line in chosen:
        mine = digest_line(case, device, line["dims"], line["seed"])
        assert mine["input_digest"] == line["input_digest"], "the inputs differ, not the kernel"
        assert mine["output_digest"] == line["output_digest"], line["dims"]


def variants():
    """Every sixth format of every kernel; one of every other kernel that Numba compiles."""
    number, found, numba = defaultdict(int), [], []
    for variant in dict.fromkeys(key[:-1] for key in GROUPS):
        kernel = variant[:3]
        if kernel[2] == "numba":
            numba += [variant] * (not number[kernel])
        elif number[kernel] % 6 == 0:
            found.append(variant)
        number[kernel] += 1
    return found + numba[::2]


VARIANTS = variants()


@pytest.mark.parametrize("number", range(len(VARIANTS)), ids=[" ".join(v) for v in VARIANTS])
def test_bits_equal_the_cards(number):
    """One target and size of each; they take turns."""
    mine = [key for key in GROUPS if key[:-1] == VARIANTS[number]]
    key = mine[number % len(mine)]
    compare(key, [GROUPS[key][number // len(mine) % len(GROUPS[key])]])


@pytest.mark.whole
@pytest.mark.parametrize("key", GROUPS, ids=" ".join)
def test_all_bits_equal_the_cards(key):
    compare(key, GROUPS[key])


TARGETS = ["7.5", "8.0", "8.9", "9.0"]


def not_recorded(op, target):
    """What has no card's digests as code for ``target`` at some size that it takes.

    (softmax ``index32`` runs beyond 2^32 elements only: it has none of these sizes.)
    """
    missing = set()
    for case in registry.cases(op):
        v, spec = case.variant, case.spec
        if spec.backend == "library":
            continue
        every = sizes_of(case, SIZES[op])
        sizes = [d for d in every if case.refusal(arch.parse(target), "cuda", d) is None]
        key = (op, spec.name, spec.backend, v.format, v.accumulator, v.output, v.contract, target)
        dims = [line["dims"] for line in GROUPS[key]] if key in GROUPS else []
        if any(d not in dims for d in sizes):
            missing.add((op, spec.name, spec.backend, v.format))
    return missing


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", SIZES)
def test_every_kernel_was_recorded(op, target):
    """To claim equality a kernel needs a card's digests."""
    assert not not_recorded(op, target)


def test_what_is_recorded_is_not_run_again():
    """A recording goes on behind the lines that are there: all but one known leaves that one."""
    device, sizes = EmulatedDevice((9, 0), target=(7, 5)), SIZES["crossentropy"][:1]
    lines = [
        line
        for key, chosen in GROUPS.items()
        for line in chosen
        if (key[0], key[-1], line["dims"], line["seed"]) == ("crossentropy", "7.5", sizes[0], 0)
    ]
    left = next(line for line in lines if line["backend"] == "raw")
    known = {run_of(line) for line in lines}
    assert len(known) == len(lines) > 1
    (again,) = digests(device, "crossentropy", sizes, known=known - {run_of(left)})
    assert run_of(again) == run_of(left)
    assert again["output_digest"] == left["output_digest"]
