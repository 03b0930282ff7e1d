"""The format table, the value view, the capability report and the generated page."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gpulab import arch
from gpulab.cli import main
from gpulab.errors import DeviceMissingError, UsageError
from gpulab.formats import FORMATS
from gpulab.report import probe, render
from gpulab.report.capability import FAMILIES, capability_report
from gpulab.report.formats import format_records, parse_value, relative_error, value_records
from gpulab.report.markdown import formats_markdown
from gpulab.report.probe import ProbeResult
from gpulab.runtime import select

ROOT = Path(__file__).resolve().parents[2]


def stored(text, **options):
    return {r["format"]: r for r in value_records(text, **options)}


def text_of(renderable, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


# ---- values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "want"),
    [
        ("1.0007", "fp16", 1.0009765625),
        ("1.0007", "bf16", 1.0),
        ("300000", "fp16", "inf"),
        ("300000", "bf16", 299008.0),
        ("-300000", "fp16", "-inf"),
        ("300000", "e4m3", "nan"),
        ("300000", "e5m2", "inf"),
        ("300000", "e2m1", 6.0),
        ("0x1.8p3", "e4m3", 12.0),
        ("1.0007", "tf32", 1.0009765625),
        ("-0.0", "fp16", -0.0),
        ("nan", "int8", 0.0),
        ("inf", "bf16", "inf"),
    ],
)
def test_stored_values(text, name, want):
    assert repr(stored(text)[name]["stored"]) == repr(want)


def test_codes_and_fields():
    row = stored("-1.5")
    assert (row["fp16"]["code"], row["fp16"]["fields"]) == ("0xbe00", "1|01111|1000000000")
    assert (row["e4m3"]["code"], row["e4m3"]["fields"]) == ("0xbc", "1|0111|100")
    assert (row["e2m1"]["code"], row["e2m1"]["fields"]) == ("0xb", "1|01|1")
    assert (row["int8"]["code"], row["int8"]["fields"]) == ("0xfe", "11111110")
    assert row["e8m0"]["fields"] == "11111111"
    assert stored("4")["e8m0"]["fields"] == f"{127 + 2:08b}"


def test_tf32_gives_its_value_and_draws_no_bits():
    tf32 = stored("1.0007")["tf32"]
    assert tf32["code"] is None
    assert tf32["fields"] is None
    assert "implementation defined" in tf32["note"]
    assert "implementation defined" in text_of(render.value_table(value_records("1.0007")), 200)


@pytest.mark.parametrize(
    ("text", "name", "flag"),
    [
        ("300000", "fp16", "overflow: inf"),
        ("300000", "e4m3", "overflow: nan"),
        ("300000", "e2m3", "saturated"),
        ("300000", "bf16", ""),
        ("464", "e4m3", ""),
        ("464.01", "e4m3", "overflow: nan"),
        ("7.74", "e2m3", ""),
        ("7.75", "e2m3", "saturated"),
        ("127.4", "int8", ""),
        ("127.5", "int8", "saturated"),
        ("-128.5", "int8", ""),
        ("-128.6", "int8", "saturated"),
        ("1e-30", "fp16", "underflow: 0"),
        ("1e-7", "fp16", "subnormal"),
        ("nan", "e2m1", "no nan: largest"),
        ("nan", "int8", "no nan: 0"),
        ("nan", "fp16", "nan"),
        ("inf", "fp16", "inf"),
        ("inf", "e2m1", "saturated"),
        ("-1", "e8m0", "nan: no zero, no sign"),
        ("1e-300", "e8m0", "raised to the smallest"),
        ("0", "fp16", ""),
    ],
)
def test_flags(text, name, flag):
    assert stored(text)[name]["flag"] == flag


def test_saturate_and_rounding():
    assert stored("300000", saturate=True)["fp16"]["stored"] == 65504.0
    assert stored("300000", saturate=True)["fp16"]["flag"] == "saturated"
    assert stored("300000", saturate=True)["e4m3"]["stored"] == 448.0
    assert stored("1.0078", rounding="toward_zero")["bf16"]["stored"] == 1.0
    assert stored("1.0078")["bf16"]["stored"] == 1.0078125
    assert stored("479", rounding="toward_zero")["e4m3"]["flag"] == ""
    assert stored("480", rounding="toward_zero")["e4m3"]["flag"] == "saturated"


def test_relative_error_is_the_exact_quotient():
    assert stored("300000")["bf16"]["relative_error"] == 992 / 300000
    assert stored("2")["fp16"]["relative_error"] == 0.0
    assert stored("300000")["fp16"]["relative_error"] is None
    assert relative_error(5e-324, 0.0) == 1.0
    assert relative_error(1.7e308, -1.7e308) == 2.0


def test_block_formats_show_a_lone_value_and_its_scale():
    row = stored("500")["mxfp8"]
    assert (row["stored"], row["scale"], row["scale_rule"]) == (512.0, 2.0, "rceil")
    assert row["scale_code"] == "0x80"
    assert "e4m3 256 x e8m0 2^1" in row["note"]
    assert stored("nan")["mxfp4"]["flag"] == "nan block"
    assert stored("1.0007")["nvfp4"]["tensor_scale"] > 0


@pytest.mark.parametrize("text", ["abc", "", "1.2.3", "0xg", "--", "1e", "one", "0x1p"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(UsageError, match="is not a number"):
        parse_value(text)


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1e-400", "0x1p2000", "0x1p-2000"])
def test_what_float64_cannot_hold_is_refused(text):
    with pytest.raises(UsageError, match="range of float64"):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "want"), [("0e-999", 0.0), ("0x0p0", 0.0), ("+Infinity", float("inf")), (" 1_0 ", 10)]
)
def test_unusual_spellings(text, want):
    assert parse_value(text) == want


# ---- the table -----------------------------------------------------------------------------


def test_the_table_has_every_format_and_fits_a_terminal():
    records = format_records()
    assert [r["format"] for r in records] == list(FORMATS)
    text = text_of(render.format_tables(records), 108)
    for name in FORMATS:
        assert name in text
    for cell in ("65504", "448", "57344", "2^-24", "2^-133", "sm_75", "sm_89", "sm_120a"):
        assert cell in text
    json.dumps(records, allow_nan=False)


def test_block_rows_include_their_scales():
    by_name = {r["format"]: r for r in format_records()}
    assert by_name["mxfp8"]["largest"] == 448 * 2.0**127
    assert by_name["mxfp4"]["smallest_subnormal"] == 2.0**-128
    assert by_name["mxfp4"]["bits_per_value"] == 4.25
    assert by_name["nvfp4"]["bits_per_value"] == 4.5
    assert by_name["nvfp4"]["tensor_scale"] == "fp32"


def test_the_page_is_current():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert page == formats_markdown(), "run scripts/update_formats.py"


# ---- the capability report -----------------------------------------------------------------

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
    assert "low 13 bits are ignored" in line_of("tf32", (8, 0)).reason


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


# ---- the command ---------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, ["formats", *arguments])


def test_values_on_the_command_line():
    done = run("1.0007", "300000", "-0.5")
    assert done.exit_code == 0
    assert "1.0009765625" in done.stdout
    assert "299008.0" in done.stdout
    assert "-0.5" in done.stdout


def test_json_is_one_object_a_line_and_nothing_else():
    done = run("nan", "-inf", "300000", "--json", "--saturate", "--rounding", "toward-zero")
    assert done.exit_code == 0
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == 3 * len(FORMATS)
    assert all(r["schema"] == 1 and r["kind"] == "value" for r in records)
    assert done.stderr == ""


@pytest.mark.parametrize("capability", ["7.5", "8.9", "9.0", "12.0", "sm_100"])
def test_capability_needs_no_device(capability):
    done = run("--capability", capability, "--json")
    assert done.exit_code == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["format"] for r in lines] == list(FAMILIES)
    want = EXPECTED[arch.parse(capability)]
    assert {r["format"] for r in lines if r["supported"]} == want


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["abc"], "not a number"),
        (["1e400"], "range of float64"),
        (["--capability", "7.0"], "sm_75 or newer"),
        (["--capability", "nine"], "not a compute capability"),
        (["--rounding", "up", "1"], "nearest"),
        (["--bogus"], "no such option"),
        (["--saturate"], "need a VALUE"),
        (["1.0", "--capability", "8.9"], "does not depend on a device"),
        (["--device", "tpu"], "emulated"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    again = run(*arguments, "--json")
    assert again.exit_code == 2
    assert json.loads(again.stdout)["error"]["exit_code"] == 2


class FakeCard:
    """Stands for an opened card; ``answers`` are its probe results."""

    kind = "cuda"
    name = "a card"
    capability = (8, 9)


def with_card(monkeypatch, **states):
    monkeypatch.setattr(select, "open_device", lambda *a, **k: FakeCard())
    names = ("fp16", "bf16", "tf32", "e4m3", "e5m2")
    answers = {n: result(n, states.get(n, "executed")) for n in names}
    monkeypatch.setattr(probe, "run_probes", lambda device, formats: answers)


def test_without_a_card_the_table_comes_with_a_hint(monkeypatch):
    def none(*a, **k):
        raise DeviceMissingError("no driver")

    monkeypatch.setattr(select, "open_device", none)
    done = run()
    assert done.exit_code == 0
    assert "mxfp8" in done.stdout
    assert "No card to report on: no driver" in done.stderr
    as_json = run("--json")
    assert len(as_json.stdout.splitlines()) == len(FORMATS)


def test_a_missing_card_that_was_asked_for_is_exit_code_7(monkeypatch):
    def none(*a, **k):
        raise DeviceMissingError("no driver")

    monkeypatch.setattr(select, "open_device", none)
    assert run("--device", "cuda").exit_code == 7


def test_on_a_card_the_yes_is_executed(monkeypatch):
    with_card(monkeypatch)
    done = run()
    assert done.exit_code == 0
    assert done.stdout.count("yes, executed") == 4
    assert "a card, cuda" in done.stdout
    lines = [json.loads(x) for x in run("--device", "cuda", "--json").stdout.splitlines()]
    assert [x["status"] for x in lines] == ["executed"] * 4 + ["table"]
    assert lines[0]["proof"][0]["status"] == "executed"


@pytest.mark.parametrize(("status", "code"), [("mismatch", 1), ("not run", 3)])
def test_a_yes_that_is_not_proven_is_no_success(monkeypatch, status, code):
    with_card(monkeypatch, e5m2=status)
    done = run("--device", "cuda")
    assert done.exit_code == code
    assert f"yes, {status}" in done.stdout
