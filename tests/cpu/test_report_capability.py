"""Which formats each capability multiplies: yes or no, instruction, reason, accumulator, proof."""

import io
import json

import pytest
from rich.console import Console

from gpulab import arch
from gpulab.report import render
from gpulab.report.capability import FAMILIES, capability_report
from gpulab.report.probe import ProbeResult


def text_of(renderable, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


EXPECTED = {
    (7, 5): {"fp16"},
    (8, 0): {"fp16", "bf16", "tf32"},
    (8, 6): {"fp16", "bf16", "tf32"},
    (8, 9): {"fp16", "bf16", "tf32", "fp8"},
    (9, 0): {"fp16", "bf16", "tf32", "fp8"},
    (10, 0): {"fp16", "bf16", "tf32", "fp8"},
    (12, 0): {"fp16", "bf16", "tf32", "fp8", "fp4"},
}


@pytest.mark.parametrize("capability", EXPECTED, ids=lambda c: f"{c[0]}.{c[1]}")
def test_yes_and_no_by_capability(capability):
    lines = capability_report(capability)
    assert [line.name for line in lines] == ["fp16", "bf16", "tf32", "fp8", "fp4"]
    assert {line.name for line in lines if line.supported} == EXPECTED[capability]
    for line in lines:
        assert line.instructions
        assert line.reason
        assert line.status == "table"


def line_of(name, capability):
    return next(line for line in capability_report(capability) if line.name == name)


@pytest.mark.parametrize(
    ("name", "capability", "instruction"),
    [
        ("fp16", (7, 5), "mma.sync.m16n8k8.f32.f16.f16.f32"),
        ("fp16", (8, 0), "mma.sync.m16n8k16.f32.f16.f16.f32"),
        ("tf32", (8, 6), "mma.sync.m16n8k8.f32.tf32.tf32.f32"),
        ("fp8", (8, 9), "mma.sync.m16n8k32.f32.e4m3.e4m3.f32"),
        ("fp8", (8, 9), "mma.sync.m16n8k32.f32.e5m2.e5m2.f32"),
        ("fp16", (9, 0), "wgmma.m64n8k16.f32.f16.f16"),
        ("fp8", (9, 0), "wgmma.m64n8k32.f32.e4m3.e4m3"),
        ("fp4", (12, 0), "mma.sync.kind::f8f6f4.m16n8k32.f32.e2m1.e2m1.f32"),
        ("fp4", (10, 0), "tcgen05.mma.kind::f8f6f4"),
    ],
)
def test_instructions(name, capability, instruction):
    assert instruction in line_of(name, capability).instructions


def test_refusals_name_what_is_needed():
    assert line_of("bf16", (7, 5)).reason == "needs sm_80 or newer"
    assert line_of("fp8", (8, 6)).reason == "needs sm_89 or newer"
    assert line_of("fp4", (9, 0)).reason == "needs sm_120a or newer"


def test_hopper_says_that_fp8_mma_sync_goes_through_fp16():
    line = line_of("fp8", (9, 0))
    assert "sm_90 emulates mma.sync fp8 through fp16" in line.reason
    assert "native wgmma" in line.reason
    assert "sm_100 emulates mma.sync fp8 through fp16" in line_of("fp8", (10, 0)).reason
    for native in ((8, 9), (12, 0)):
        assert "fp16" not in line_of("fp8", native).reason
    assert "emulates" not in line_of("fp16", (9, 0)).reason


def test_blackwell_reaches_fp4_by_tcgen05_which_the_lab_does_not_run():
    line = line_of("fp4", (10, 0))
    assert not line.supported
    assert "tcgen05" in line.reason
    assert "does not run" in line.reason


@pytest.mark.parametrize(
    ("name", "capability", "words"),
    [
        ("tf32", (8, 0), ["fp32 accumulator", "blocks of 4", "24 fraction bits"]),
        ("tf32", (9, 0), ["fp32 accumulator", "blocks of 8", "25 fraction bits"]),
        ("fp8", (8, 9), ["14-bit accumulator", "e8m13", "blocks of 16", "13 fraction bits"]),
        ("fp8", (12, 0), ["fp32 accumulator", "blocks of 32", "25 fraction bits"]),
    ],
)
def test_accumulator_width(name, capability, words):
    text = line_of(name, capability).accumulator[0]
    assert all(word in text for word in words), text


def test_tf32_operands_are_truncated_by_the_hardware():
    assert "low 13 bits of the 32-bit operands are ignored" in line_of("tf32", (8, 0)).reason


def test_hopper_fp8_has_two_accumulators():
    by_warp, by_group = line_of("fp8", (9, 0)).accumulator
    assert by_warp.startswith("mma.sync: fp32 accumulator")
    assert by_group.startswith("wgmma: 14-bit accumulator (e8m13, truncated; blocks of 32")


def test_a_card_without_an_arithmetic_model_says_so():
    assert "not known" in line_of("tf32", (8, 7)).accumulator[0]


def test_every_known_capability_reports():
    for capability in arch.ARCHES:
        lines = capability_report(capability)
        assert [line.name for line in lines] == list(FAMILIES)
        text_of(render.capability_table(lines, capability))


def result(name, status, **more):
    return ProbeResult(name, "mma.sync.x", status, f"{status}!", **more)


def test_proof_is_shown_and_the_worst_result_counts():
    executed = {"fp16": result("fp16", "executed"), "e4m3": result("e4m3", "executed")}
    executed["e5m2"] = result("e5m2", "mismatch")
    lines = {line.name: line for line in capability_report((8, 9), executed)}
    assert lines["fp16"].status == "executed"
    assert lines["fp8"].status == "mismatch"
    assert lines["bf16"].status == "table"
    text = text_of(render.capability_table(list(lines.values()), (8, 9), "a card, cuda"))
    assert "yes, executed" in text
    assert "yes, mismatch" in text
    assert "a card, cuda" in text
    assert "nothing was executed" not in text
    for line in lines.values():
        json.dumps(line.to_json((8, 9)), allow_nan=False)
