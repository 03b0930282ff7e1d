"""The value view, the format table and the generated page."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gpulab.errors import UsageError
from gpulab.formats import FORMATS
from gpulab.report import render
from gpulab.report.formats import format_records, parse_value, relative_error, value_records
from gpulab.report.markdown import formats_markdown

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
    text = text_of(render.format_tables(records), 80)
    for name in FORMATS:
        assert name in text
    assert text.count("sm_120a") == 7  # the last columns are not cut off
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
