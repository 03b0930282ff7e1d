"""The arithmetic model equals recorded hardware, bit for bit, and other parameters do not."""

import numpy as np
import pytest
from golden_data import FAMILIES, FORMS, full_archive, operands, subset
from readings import (
    CARDS,
    H200,
    OPEN,
    card_miss,
    card_readings,
    compute,
    differing,
    dot_products,
    floor,
    instruction,
    miss,
    readings,
    sets,
)

from gpulab.numerics.tensorcore import mma, model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", FORMS)
def test_sample_of_every_recorded_form_is_equal(form, family):
    a, b, c, d = operands(subset(), form, family)
    assert differing(mma(a, b, c, FORMS[form], H200), d) == 0


def test_the_sample_holds_what_the_special_family_is_for():
    for form in FORMS:
        a, b, _, d = operands(subset(), form, "special")
        nan = 0x7FFF if d.dtype == np.uint16 else 0x7FFFFFFF
        assert (d == nan).any(), form
        assert (a == 0).any() or (b == 0).any()


@pytest.mark.parametrize("form", FORMS)
def test_full_archive_is_equal(form):
    with full_archive("mma_sm90.npz") as archive:
        for family in FAMILIES:
            a, b, c, d = operands(archive, form, family)
            assert differing(mma(a, b, c, FORMS[form], H200), d) == 0, family


@pytest.mark.parametrize(("form", "wrong"), list(readings()))
def test_a_wrong_parameter_fails(form, wrong):
    rate, size = miss(form, wrong)
    assert rate > floor(size), f"{form} with {wrong}: {rate:.2%} of {size} results differ"


# --- hardware of other makes: one dot product a row ---


@pytest.mark.parametrize(("card", "name", "kind"), list(sets()))
def test_dot_products_of_other_cards_are_equal(card, name, kind):
    a, b, c, want = dot_products(card, name, kind)
    if "C = 0" in OPEN.get((card, name, kind), ""):
        c = np.zeros_like(c)
    rules = model(instruction(card, name, kind), CARDS[card])
    assert differing(compute(a, b, c, rules), want) == 0, OPEN.get((card, name, kind), "")


def test_every_published_set_is_covered():
    with full_archive("dot_products_by_gpu.npz") as archive:
        there = {tuple(k.split("/")) for k in archive.files if k.split("/")[2].startswith("d_")}
    assert there == set(sets())
    assert set(OPEN) <= set(sets())


@pytest.mark.parametrize(
    ("card", "name", "kind", "other"),
    [
        ("H200", "E4M3", "d_fp32", "mma.sync.m16n8k32.f32.e4m3.e4m3.f32"),
        ("H100", "E5M2", "d_fp32", "mma.sync.m16n8k32.f32.e5m2.e5m2.f32"),
        ("H200", "E4M3", "d_fp16", "wgmma.m64n8k32.f16.e4m3.e4m3"),
        ("H100", "E5M2", "d_fp16", "wgmma.m64n8k32.f16.e5m2.e5m2"),
    ],
)
def test_the_other_reading_of_an_open_set_does_not_fit(card, name, kind, other):
    a, b, c, want = dot_products(card, name, kind)
    rate = differing(compute(a, b, c, model(other, CARDS[card])), want)
    assert rate > floor(want.size)


@pytest.mark.parametrize(("card", "name", "wrong"), list(card_readings()))
def test_a_wrong_parameter_fails_on_other_cards(card, name, wrong):
    rate, size = card_miss(card, name, wrong)
    assert rate > floor(size), f"{rate:.2%}"
