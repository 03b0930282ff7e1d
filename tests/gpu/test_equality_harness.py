"""The comparison with the card notices what it must: tried on two emulated devices, one altered."""

import json

import numpy as np
import pytest
from equality import Devices, Family, Ins, as_words, check, compare
from equality_inputs import floats, integers, packed, pairs, specials, triples

from gpulab.runtime.cache import Store
from gpulab.runtime.emulated import EmulatedDevice


class Altered(EmulatedDevice):
    """An emulated device whose downloads have chosen words changed."""

    wrong = ()

    def download(self, array):
        words = super().download(array).copy()
        for at in self.wrong:
            words[at] ^= 1
        return words


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_EQUALITY_REPORT", str(tmp_path / "report.jsonl"))
    monkeypatch.setenv("GPULAB_EQUALITY_DUMP", str(tmp_path / "dump"))
    store = Store(tmp_path / "cache")
    return Devices(Altered((9, 0), store=store), EmulatedDevice((9, 0), store=store), tmp_path)


def sums():
    a, b = pairs("f32", 100)
    twice = Ins("add twice", ".reg .f32 t; add.f32 t, %1, %2; add.f32 %0, t, t;")
    return Family("sums", ["add.f32", twice], [a, b], np.uint32)


def lines(two):
    return [json.loads(t) for t in (two.folder / "report.jsonl").read_text().splitlines()]


def test_equal_devices_are_equal(two):
    check(two, sums())
    (line,) = lines(two)
    assert (line["family"], line["instructions"], line["differing"]) == ("sums", 2, 0)
    assert line["inputs"] == len(pairs("f32", 100)[0])
    assert {"driver", "date", "device_name", "nvrtc"} <= set(line["environment"])
    assert not (two.folder / "dump").exists()


def test_a_wrong_bit_is_found_named_and_kept(two):
    a, b = pairs("f32", 100)
    n = len(a)
    two.card.wrong = (n + 7, n + 9)
    (found,) = compare(two, sums())
    assert (found.instruction, found.count) == ("add twice", 2)
    inputs, card, emulated = found.shown[0]
    assert inputs == [f"{a[7]:#010x}", f"{b[7]:#010x}"]
    assert int(card, 16) ^ int(emulated, 16) == 1
    with pytest.raises(AssertionError, match="add twice: 2 differ; first at " + inputs[0]):
        check(two, sums())
    first, _ = lines(two)
    assert first["differing"] == 2
    assert first["differences"][0]["first"][0] == {
        "inputs": inputs, "card": card, "emulated": emulated,
    }  # fmt: skip
    kept = np.load(two.folder / "dump" / "sums.npz")
    assert set(kept) == {"x0", "x1", "add twice"}
    assert np.array_equal(kept["x0"], a)
    assert int(kept["add twice"][7]) == int(card, 16)


def test_the_place_of_a_result_is_an_operand(two):
    family = Family(
        "place", [Ins("st", "st.global.b64 [%2], %1; ld.global.b64 %0, [%2];")],
        [integers(np.uint64, 100)], np.uint64, place=True,
    )  # fmt: skip
    assert compare(two, family) == []


def test_words_are_padded():
    assert list(as_words(np.array([1, 2, 3], np.uint16))) == [1 | 2 << 16, 3]


@pytest.mark.parametrize("form", ["f16", "bf16", "f32", "f64"])
def test_inputs_hold_what_breaks_instructions(form):
    exponent, fraction = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}[form]
    top = (1 << exponent) - 1
    columns = [[floats(form, 1000)], pairs(form, 1000), triples(form, 1000)]
    for column in columns:
        assert len({len(x) for x in column}) == 1
        for codes in column:
            codes = codes.astype(np.uint64)
            field = (codes >> np.uint64(fraction)) & np.uint64(top)
            rest = codes & np.uint64((1 << fraction) - 1)
            quiet = rest >> np.uint64(fraction - 1)
            assert {0, 1, top - 1, top} <= set(field.tolist())
            for kind in (rest == 0, (rest != 0) & (quiet == 0), quiet == 1):
                assert (kind & (field == top)).any()  # infinities, both kinds of NaN
            assert ((field == 0) & (rest != 0)).any()
    a, b = pairs(form, 1000)
    special = set(specials(form).tolist())
    assert len(set(zip(a.tolist(), b.tolist(), strict=True))) > len(special) ** 2


def test_integers_reach_the_ends():
    for kind in (np.uint16, np.uint32, np.uint64):
        info = np.iinfo(kind)
        held = set(integers(kind, 1000).tolist())
        assert {0, 1, info.max, info.max // 2, info.max // 2 + 1} <= held


def test_pairs_of_halves_are_packed_low_first():
    (words,) = packed(np.array([1, 2, 3], np.uint16))
    assert list(words) == [1 | 2 << 16, 3 | 1 << 16]
