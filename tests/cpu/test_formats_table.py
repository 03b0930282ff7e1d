"""The rows, and every constant derived from them, against ml_dtypes, NumPy and the documents."""

import ml_dtypes
import numpy as np
import pytest

from gpulab.errors import UsageError
from gpulab.formats import FORMATS, get, names, storage_dtype

FINFO = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}


def test_the_names_are_the_agreed_ones():
    assert names() == (
        *("fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1"),
        *("e8m0", "int8", "int4", "mxfp8", "mxfp6", "mxfp4", "nvfp4"),
    )


def test_no_spelling_means_two_formats():
    spellings = [s for row in FORMATS.values() for s in (row.name, *row.aliases)]
    assert len(spellings) == len(set(spellings))
    for row in FORMATS.values():
        for spelling in (row.name, *row.aliases, row.name.upper()):
            assert get(spelling) is row


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match="fp7") as caught:
        get("fp7")
    assert all(name in str(caught.value.fix) for name in names())


@pytest.mark.parametrize("name", FINFO)
def test_derived_constants(name):
    row, info = get(name), ml_dtypes.finfo(FINFO[name])
    assert row.bits == info.bits
    assert row.mantissa_bits == info.nmant
    assert row.exponent_bits == info.nexp
    assert row.max_finite == float(info.max)
    assert row.min_finite == float(info.min)
    assert row.eps == float(info.eps)
    assert row.unit_roundoff == float(info.eps) / 2
    if name == "e8m0":  # no subnormals: ml_dtypes gives the same number twice
        assert row.min_normal == row.min_subnormal == 2.0**-127
    else:
        assert row.min_normal == float(info.smallest_normal)
        assert row.min_subnormal == float(info.smallest_subnormal)


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16():
    tf32, fp32, fp16 = get("tf32"), get("fp32"), get("fp16")
    assert tf32.min_normal == fp32.min_normal
    assert tf32.max_exponent == fp32.max_exponent
    assert tf32.eps == fp16.eps == 2.0**-10
    assert tf32.min_subnormal == 2.0**-136
    assert tf32.max_finite == (2 - 2.0**-10) * 2.0**127
    assert tf32.container_shift == 13


@pytest.mark.parametrize(("name", "emax"), [("e4m3", 8), ("e5m2", 15), ("e3m2", 4), ("e2m3", 2)])
def test_element_emax_of_the_mx_specification(name, emax):
    assert get(name).max_exponent == emax


@pytest.mark.parametrize(("name", "low", "high"), [("int8", -128, 127), ("int4", -8, 7)])
def test_integers(name, low, high):
    row = get(name)
    assert (row.min_finite, row.max_finite) == (low, high)
    assert row.eps == 1


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *[("fp32", "float32"), ("tf32", "float32"), ("fp16", "float16"), ("bf16", "uint16")],
        *[(n, "uint8") for n in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "e8m0", "int4")],
        *[("int8", "int8"), ("int32", "int32"), ("mxfp8", "uint8"), ("nvfp4", "uint8")],
    ],
)
def test_storage(name, dtype):
    assert storage_dtype(name) == np.dtype(dtype)


def test_int32_is_a_container_and_no_format():
    with pytest.raises(UsageError):
        get("int32")


@pytest.mark.parametrize(
    ("name", "capability", "instruction"),
    [
        ("fp16", (7, 5), "mma.sync.m16n8k8.f32.f16.f16.f32"),
        ("bf16", (8, 0), "mma.sync.m16n8k16.f32.bf16.bf16.f32"),
        ("tf32", (8, 0), "mma.sync.m16n8k8.f32.tf32.tf32.f32"),
        ("e4m3", (8, 9), "mma.sync.m16n8k32.f32.e4m3.e4m3.f32"),
        ("e5m2", (8, 9), "mma.sync.m16n8k32.f32.e5m2.e5m2.f32"),
        ("e2m1", (12, 0), "mma.sync.kind::f8f6f4.m16n8k32.f32.e2m1.e2m1.f32"),
        ("int8", (7, 5), "mma.sync.m8n8k16.s32.s8.s8.s32"),
        ("fp32", None, None),
        ("e8m0", None, None),
    ],
)
def test_instruction_and_lowest_capability(name, capability, instruction):
    row = get(name)
    assert (row.min_capability, row.instruction) == (capability, instruction)


@pytest.mark.parametrize(
    ("name", "length", "scale", "tensor_scale"),
    [
        ("mxfp8", 32, "e8m0", None),
        ("mxfp6", 32, "e8m0", None),
        ("mxfp4", 32, "e8m0", None),
        ("nvfp4", 16, "e4m3", "fp32"),
    ],
)
def test_block_rows(name, length, scale, tensor_scale):
    row = get(name)
    assert row.block is not None
    assert (row.block.length, row.block.scale) == (length, scale)
    assert row.block.tensor_scale == tensor_scale
    for element in row.block.elements:
        assert get(element).block is None
    assert row.max_finite == get(row.block.elements[0]).max_finite


def test_every_row_names_its_source():
    assert all(row.source and row.title for row in FORMATS.values())
