"""Published probes: single numbers that tell the generations of tensor cores apart."""

import numpy as np
import pytest
from tensorcore_cases import (
    ADA,
    B200,
    FP8_32,
    FP16,
    H100,
    MIDDLE,
    NEW,
    OLD,
    RTX,
    V100,
    WGMMA_8,
    encoded,
)

from gpulab.numerics.tensorcore import CAPABILITIES, mma, model


def probe(capability, products, c, name=None, ptx="f16", k=16):
    """D for a list of (a, b), the rest zero."""
    a, b = np.zeros((1, k)), np.zeros((k, 1))
    for i, (x, y) in enumerate(products):
        a[0, i], b[i, 0] = x, y
    d_half = name is not None and ".f16.f16.f16.f16" in name
    kind, unsigned = (np.float16, np.uint16) if d_half else (np.float32, np.uint32)
    bits = np.array([[c]], dtype=kind).view(unsigned)
    d = mma(encoded(a, ptx), encoded(b, ptx), bits, name or FP16[capability], capability)
    return float(d.view(kind)[0, 0])


def by_generation(old, middle, new):
    return {**dict.fromkeys(OLD, old), **dict.fromkeys(MIDDLE, middle), **dict.fromkeys(NEW, new)}


ULP = 2.0**-23
TINY = {  # name: (products, c, expected by capability)
    "P1": ([(1, 1)], -(1 - 2.0**-24), by_generation(ULP, ULP / 2, ULP / 2)),
    "P2": ([(2.0**-12, 2.0**-12)] * 2, 1, by_generation(1, 1 + ULP, 1 + ULP)),
    "P3": ([(2.0**-12, 2.0**-13)] * 4, 1, by_generation(1, 1, 1 + ULP)),
    "P4": ([(2.0**-13, 2.0**-13)] * 8, 1, by_generation(1, 1, 1)),
    "P6": ([(1, 1)] * 3, 1 + 3 * ULP, by_generation(4, 4, 4)),
    "P6 negative": ([(-1, 1)] * 3, -(1 + 3 * ULP), by_generation(-4, -4, -4)),
    "P8": ([(1, 1), (1.5, 1), (1.75, 1), (1.875, 1)], 1.875, by_generation(8, 8, 8)),
}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", TINY)
def test_alignment_probes(name, capability):
    products, c, expected = TINY[name]
    assert probe(capability, products, c) == expected[capability]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_block_probe(capability):
    """P5: one huge product hides its own block's small ones; blocks after it add theirs."""
    block = {V100: 4, **dict.fromkeys(MIDDLE, 8), **dict.fromkeys(NEW, 16)}[capability]
    for j in range(16):
        products = [(2.0**-9, 2.0**-9)] * 16
        products[j] = (2.0**7, 2.0**7)
        got = probe(capability, products, -(2.0**14)) / 2.0**-18
        assert got == 16 - (j // block + 1) * block, j


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_products_are_not_renormalised(capability):
    """P7: 1.5 * 1.5 = 2.25 keeps exponent 0, so a c of one alignment unit of it survives."""
    c = 2.0 ** -model(FP16[capability], capability).fraction_bits
    assert probe(capability, [(1.5, 1.5), (-1.5, 1.5)], c) == c


@pytest.mark.parametrize(
    ("name", "capability", "p9", "p10"),
    [
        (FP8_32, ADA, 1 + 2.0**-13, 1),
        (WGMMA_8, H100, 1 + 2.0**-13, 1),
        (FP8_32, H100, None, 1 + 2.0**-13),
        (FP8_32, B200, None, 1 + 2.0**-13),
        (FP8_32, RTX, None, 1 + 2.0**-13),
    ],
)
def test_fp8_probes(name, capability, p9, p10):
    """P9: an idle accumulator loses all below 13 fraction bits. P10: four products of 2^-15."""
    c = 1 + 2.0**-13 + 2.0**-14 + ULP
    assert probe(capability, [], c, name, "e4m3", 32) == (c if p9 is None else p9)
    tiny = [(2.0**-9, 2.0**-6)] * 4
    assert probe(capability, tiny, 1, name, "e4m3", 32) == p10


def test_half_result_and_invalid_probes():
    """P11: 2^-25 + 2^-26 rounds to nearest, 2^-24. P12: Inf * 0 is the canonical NaN."""
    half = "mma.sync.m16n8k8.f16.f16.f16.f16"
    products = [(2.0**-12, 2.0**-13), (2.0**-13, 2.0**-13)]
    for capability in CAPABILITIES:
        name = half if capability != V100 else "mma.sync.m8n8k4.f16.f16.f16.f16"
        assert probe(capability, products, 0, name) == 2.0**-24
        k = model(name, capability).k
        a, b = encoded(np.zeros((1, k)), "f16"), encoded(np.zeros((k, 1)), "f16")
        a[0, 0] = 0x7C00
        assert mma(a, b, np.zeros((1, 1), np.uint16), name, capability)[0, 0] == 0x7FFF
        wide = name.replace("k8.f16", "k8.f32").replace("k4.f16", "k4.f32")
        wide = wide.removesuffix("f16") + "f32"
        assert mma(a, b, np.zeros((1, 1), np.uint32), wide, capability)[0, 0] == 0x7FFFFFFF


def test_a_float16_zero_keeps_the_alignment_up():
    """Seen on an H200: half of the smallest float16 plus 2^-48 is a tie for C = 0 and -0."""
    a, b = np.zeros((1, 16), np.float16), np.zeros((16, 1), np.float16)
    a[0, :2] = 2.0**-12, 2.0**-24
    b[:2, 0] = 2.0**-13, 2.0**-24
    for c, d in ((0, 0), (0x8000, 0), (1, 2), (2, 2), (3, 4)):
        addend = np.array([[c]], np.uint16)
        got = mma(a, b, addend, "mma.sync.m16n8k16.f16.f16.f16.f16", (9, 0))
        assert int(got[0, 0]) == d, c
