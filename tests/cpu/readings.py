"""Right and wrong readings of recorded tensor-core results, and how often a wrong one shows."""

from dataclasses import replace

import numpy as np
from golden_data import FINITE, FORMS, full_archive, operands, subset

from gpulab.formats import encode
from gpulab.numerics.tensorcore import evaluate, model

H200 = (9, 0)


def differing(got, want):
    """Share of results whose bits differ; NaN is compared like everything else."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    return np.count_nonzero(got != want) / want.size


# Every wrong reading of a form: what a reader might have assumed instead.
WRONG = {
    "F-1": lambda m: replace(m, fraction_bits=m.fraction_bits - 1),
    "F+1": lambda m: replace(m, fraction_bits=m.fraction_bits + 1),
    "half the block": lambda m: replace(m, block=m.block // 2),
    "a quarter of the block": lambda m: replace(m, block=m.block // 4),
    "other rounding": lambda m: replace(m, result=OTHER_ROUNDING[m.result]),
    "float32 result": lambda m: replace(m, result="rz_f32"),
    "twice the block": lambda m: replace(m, block=m.block * 2),
    "native": lambda m: replace(m, route="native", block=32),
    "native, in order": lambda m: replace(m, route="native"),
}
OTHER_ROUNDING = {"rz_f32": "rne_f32", "rne_f16": "rz_f16", "rz_e8m13": "rne_f32"}


def readings():
    for form in FORMS:
        names = ["F-1", "F+1", "half the block", "a quarter of the block", "other rounding"]
        if form.startswith("wg_e"):
            names.append("float32 result")
        if form.endswith("k32"):
            names = ["F-1", "F+1", "half the block", "other rounding", "native", "native, in order"]
        for name in names:
            yield form, name


def miss(form, wrong):
    """Share of the finite sample that a changed model gets wrong, and its size."""
    rules = WRONG[wrong](model(FORMS[form], H200))
    differ = size = 0
    for family in FINITE:
        a, b, c, d = operands(subset(), form, family)
        differ += np.count_nonzero(evaluate(rules, a, b, c) != d)
        size += d.size
    return differ / size, size


def floor(size):
    """A rate r leaves all n results equal with probability (1 - r)^n: this r, once in 10^9."""
    return 1 - 1e-9 ** (1 / size)


# --- hardware of other makes: one dot product a row ---------------------------------------------

CARDS = {
    "V100": (7, 0),
    "A100": (8, 0),
    "A2": (8, 6),
    "Ada": (8, 9),
    "L40S": (8, 9),
    "H100": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
}
K = {
    "V100": {"fp16": 4},
    **{card: {"fp16": 8, "bf16": 8, "tf32": 4} for card in ("A100", "A2", "Ada", "L40S")},
    **{card: {"fp16": 16, "bf16": 16, "tf32": 4} for card in ("H100", "H200", "B200")},
}
FP8_CARDS = ("Ada", "L40S", "H100", "H200", "B200")
NO_HALF_RESULT = {"L40S": ("E4M3", "E5M2")}
PTX = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}


def sets():
    for card in CARDS:
        for name in (*K[card], *(("E4M3", "E5M2") if card in FP8_CARDS else ())):
            yield card, name, "d_fp32"
            has_half = name in ("fp16", "E4M3", "E5M2")
            if has_half and name not in NO_HALF_RESULT.get(card, ()):
                yield card, name, "d_fp16"


# The sets that do not say which instruction gave them, and the reading that fits:
OPEN = {
    **{
        (card, name, "d_fp32"): "wgmma, C = 0 (the C of the file was not used)"
        for card in ("H100", "H200")
        for name in ("E4M3", "E5M2")
    },
    **{
        (card, name, "d_fp16"): "mma.sync through fp16, the products split by k mod 4"
        for card in ("H100", "H200", "B200")
        for name in ("E4M3", "E5M2")
    },
    **{
        (card, "fp16", "d_fp16"): "mma.sync with a float16 C, the float32 C rounded to nearest"
        for card in CARDS
    },
}


def dot_products(card, name, kind):
    with full_archive("dot_products_by_gpu.npz") as archive:
        a, b, c = (archive[f"{card}/{name}/{x}"] for x in "abc")
        want = archive[f"{card}/{name}/{kind}"]
    return codes(name, a), codes(name, b), c.view(np.float32), want


def codes(name, bits):
    """Codes of float32 values that the format holds exactly."""
    if name == "tf32":
        return bits
    row = PTX[name]
    stored = encode(row, bits.view(np.float32).astype(np.float64))
    return stored.view(f"u{stored.dtype.itemsize}")


def instruction(card, name, kind):
    out = "f16" if kind == "d_fp16" else "f32"
    t = PTX[name]
    if OPEN.get((card, name, kind), "").startswith("wgmma"):
        return f"wgmma.m64n8k32.{out}.{t}.{t}"
    shape = "m8n8k4" if card == "V100" else f"m16n8k{K[card].get(name, 32)}"
    return f"mma.sync.{shape}.{out}.{t}.{t}.{out}"


def compute(a, b, c, rules):
    """D as float32 bits, for rows of dot products."""
    half = rules.d_type == "f16"
    c_bits = c.astype(np.float16).view(np.uint16) if half else c.view(np.uint32)
    d = evaluate(rules, a[:, None, :], b[:, :, None], c_bits[:, None, None])[:, 0, 0]
    return d.view(np.float16).astype(np.float32).view(np.uint32) if half else d


def card_readings():
    """(card, set, wrong reading) for the float32 results of every card."""
    for card in CARDS:
        for name in (*K[card], *(("E4M3", "E5M2") if card in ("Ada", "L40S") else ())):
            yield from ((card, name, wrong) for wrong in ("F-1", "F+1", "other rounding"))
            if card != "V100":
                yield card, name, "half the block"
            if name in ("E4M3", "E5M2"):
                yield from ((card, name, wrong) for wrong in ("twice the block", "float32 result"))


def card_miss(card, name, wrong):
    """Share of a card's dot products that a changed model gets wrong, and their number."""
    a, b, c, want = dot_products(card, name, "d_fp32")
    rules = WRONG[wrong](model(instruction(card, name, "d_fp32"), CARDS[card]))
    return differing(compute(a, b, c, rules), want), want.size
