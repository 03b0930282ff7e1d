"""The gates of the row operations: honest kernels pass, mistakes fail, each part is needed."""

from functools import partial

import numpy as np
import pytest
import row_kernels as k
from row_kernels import Row, runner, subjects

from gpulab import ops
from gpulab.errors import UsageError
from gpulab.formats import encode
from gpulab.numerics.cache import Cache
from gpulab.ops import rows_data, rows_measure, rows_probes
from gpulab.ops.rows_contract import RowContract
from gpulab.ops.rows_data import RowData
from gpulab.ops.rows_families import families_for, get_family

DIMS = {"rows": 7, "cols": 129}
SOFTMAX = RowContract("softmax", "bf16", "bf16")


def judged(op, row, kernel, dims=DIMS, *, how=None, spoil=None, **options):
    whole = runner(row, kernel, spoil, **(how or {}))

    def run(inputs, *, poison):
        rows = {"x", "residual", "labels"} & inputs.keys()
        some = {n: np.resize(inputs[n], (dims["rows"], *inputs[n].shape[1:])) for n in rows}
        return whole({**inputs, **some}, poison=poison)

    return ops.get(op).judge(row, dims, run, capability=(8, 9), **options)


def name(subject):
    op, row, _ = subject
    return f"{op}-{row.format}-{row.output}-{row.contract}"


@pytest.mark.parametrize("subject", list(subjects()), ids=name)
def test_an_honest_kernel_passes_on_every_family_and_probe(subject):
    op, row, kernel = subject
    j = judged(op, row, kernel, effort="full")
    assert j.verdict == "PASS", j.reason
    assert {f.family for f in j.families} == set(families_for(row.format))
    assert {p.probe for p in j.probes} >= {"exact", "non_finite"}
    assert j.arithmetic_fraction <= 1.0
    assert all(c.status != "passes" for c in j.power)
    assert sum(c.status == "caught" for c in j.power) >= 11


@pytest.mark.parametrize("cols", [1, 2, 3, 33, 1000])
@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy"])
def test_no_size_is_inconclusive_for_an_honest_kernel(op, cols):
    for row in k.ROWS[op][:3]:
        for rows in (1, 5):
            j = judged(op, row, k.KERNELS[op], {"rows": rows, "cols": cols})
            assert j.verdict == "PASS", (rows, row, j.reason)


@pytest.mark.parametrize(
    ("telling", "wanted"), [(True, ("PASS", "caught")), (False, ("INCONCLUSIVE", "passes"))]
)
def test_half_powers_show_in_a_long_row_whatever_its_family(telling, wanted, monkeypatch):
    """The sum's share of D hides them in 50257 columns; the probe of two terms has no sum."""
    if not telling:
        monkeypatch.setattr(rows_probes, "_telling_difference", lambda contract: -np.inf)
    row, dims = Row("fp32", "fp32"), {"rows": 1, "cols": 50257}
    j = judged("logsoftmax", row, k.KERNELS["logsoftmax"], dims, families=["low"])
    assert (j.verdict, {c.mutant: c.status for c in j.power}["half_exp"]) == wanted


BF16, FP16, FP32 = (Row(f, f) for f in ("bf16", "fp16", "fp32"))
KEPT, ROUNDED = Row("bf16", "bf16", "fp32-sum"), Row("bf16", "bf16", "rounded-sum")
KEPT16 = Row("fp16", "fp16", "fp32-sum")
LOSS = Row("bf16", "fp32")


def half_exp(d):
    return np.exp(d).astype(np.float16).astype(np.float32)


def bf16_exp(d):
    return k.through("bf16", np.exp(d))


WRONG = [
    ("rmsnorm", BF16, k.rmsnorm, {"total": k.narrow_sum("bf16")}),
    ("rmsnorm", FP16, k.rmsnorm, {"total": k.narrow_sum("fp16")}),
    ("rmsnorm", FP32, k.rmsnorm, {"total": k.narrow_sum("fp16")}),
    ("rmsnorm", BF16, k.rmsnorm, {"cast": False}),
    ("rmsnorm", FP16, k.rmsnorm, {"cast": False}),
    ("rmsnorm", BF16, k.rmsnorm, {"eps": np.float32(0)}),
    ("rmsnorm", KEPT, k.residual_rmsnorm, {"early": True}),
    ("rmsnorm", KEPT16, k.residual_rmsnorm, {"early": True}),
    ("rmsnorm", ROUNDED, k.residual_rmsnorm, {"early": False}),
    ("layernorm", FP32, k.layernorm, {"variance": "naive"}),
    ("layernorm", FP16, k.layernorm, {"variance": "naive"}),
    ("layernorm", BF16, k.layernorm, {"variance": "naive"}),
    ("layernorm", BF16, k.layernorm, {"eps": np.float32(0)}),
    ("layernorm", BF16, k.layernorm, {"total": k.narrow_sum("bf16")}),
    ("softmax", FP32, k.softmax, {"largest": np.float32(0)}),
    ("softmax", BF16, k.softmax, {"largest": np.float32(0)}),
    ("softmax", FP16, k.softmax, {"total": k.narrow_sum("fp16")}),
    ("softmax", BF16, k.softmax, {"total": k.narrow_sum("bf16")}),
    ("softmax", FP16, k.softmax, {"exp": half_exp}),
    ("softmax", BF16, k.softmax, {"exp": bf16_exp}),
    ("logsoftmax", FP32, k.logsoftmax, {"exp": half_exp}),
    ("logsoftmax", FP16, k.logsoftmax, {"total": k.narrow_sum("fp16")}),
    ("crossentropy", LOSS, k.crossentropy, {"total": k.narrow_sum("bf16")}),
    ("crossentropy", LOSS, k.crossentropy, {"shift": 1}),
    ("crossentropy", LOSS, k.crossentropy, {"ignore": False}),
]


@pytest.mark.parametrize(
    "wrong", WRONG, ids=lambda w: f"{w[0]}-{w[1].format}-{w[1].contract}-{'-'.join(w[3])}"
)
def test_a_mistake_fails(wrong):
    op, row, kernel, how = wrong
    assert judged(op, row, kernel).verdict == "PASS"
    j = judged(op, row, kernel, how=how)
    assert j.verdict == "FAIL"
    assert not j.arithmetic_passed
    assert j.caught_on, "the record names what caught it"


def test_early_rounding_is_what_a_usual_comparison_passes():
    """Under the 1 % and 0.1 % of conventional tests; one element in five or so differs."""
    j = judged("rmsnorm", KEPT, k.residual_rmsnorm, how={"early": True})
    record = j.to_record()
    assert "normal" in record["allclose_passes_on"]["0.01"]
    assert record["contract_gate"]["passed"]
    assert record["contract"] == "fp32-sum"


def test_the_exact_probe_alone_sees_a_skipped_column_of_a_long_row():
    """20000 columns: D of ordinary rows has room; where no order of sums rounds it has none."""
    dims = {"rows": 4, "cols": 20000}
    j = judged("softmax", FP32, k.softmax, dims, how={"total": k.narrow_sum("fp16")})
    assert "exact" in j.caught_on
    skipping = {"total": lambda v: k.plain_sum(v[:, 1:])}
    plain = ["normal", "mixed"]
    skipped = judged("rmsnorm", FP32, k.rmsnorm, dims, how=skipping, families=plain)
    assert skipped.caught_on == ("exact",)


def test_the_rms_alone_sees_errors_that_are_all_too_large_but_allowed():
    """Every result off by 2^-19, inside D of 1000 columns: no honest order of sums does that."""

    def stretched(outputs, poison):
        outputs["y"] *= np.float32(1 + 2.0**-19)

    j = judged("rmsnorm", FP32, k.rmsnorm, {"rows": 20, "cols": 1000}, spoil=stretched)
    assert {r.code for f in j.families for r in f.reasons} == {"rms"}


SPOILS = {
    "nan": (lambda y, poison: y.__setitem__((2, 5), np.nan), "interval"),
    "infinity": (lambda y, poison: y.__setitem__((0, 0), np.inf), "interval"),
    "one ulp": (lambda y, poison: y.__setitem__((3, 7), np.nextafter(y[3, 7], 9)), "interval"),
    "unwritten": (
        lambda y, poison: y[-1:].view(np.uint8).fill(poison),
        "unwritten",
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_one_wrong_element_is_seen(spoil):
    change, code = SPOILS[spoil]
    j = judged("rmsnorm", FP16, k.rmsnorm, spoil=lambda out, poison: change(out["y"], poison))
    assert j.verdict == "FAIL"
    assert code in {r.code for r in j.reasons}


def test_a_kernel_that_changes_its_answer_is_seen():
    state = {"n": 0}

    def flicker(outputs, poison):
        state["n"] += 1
        outputs["y"][0, 0] = np.nextafter(outputs["y"][0, 0], np.float16(state["n"] % 2 * 60000))

    j = judged("softmax", FP16, k.softmax, spoil=flicker)
    assert "nondeterministic" in {r.code for r in j.reasons}


def test_outputs_of_another_shape_or_missing_are_refused():
    for change in (lambda out, _: out.pop("lse"), lambda out, _: out.update(lse=out["lse"][:-1])):
        j = judged("crossentropy", LOSS, k.crossentropy, spoil=change)
        assert j.reason.code == "shape"


def test_every_repeated_row_is_checked(monkeypatch):
    """A large array repeats a prime number of rows; an error in any copy is found, and named."""
    monkeypatch.setattr(rows_data, "DISTINCT_ELEMENTS", 1 << 10)
    dims = {"rows": 100, "cols": 64}
    assert rows_data.distinct_rows(100, 64) == 13
    assert judged("rmsnorm", BF16, k.rmsnorm, dims).verdict == "PASS"

    def spoil(outputs, poison):
        outputs["y"][97, 3] ^= 1 << 4

    j = judged("rmsnorm", BF16, k.rmsnorm, dims, spoil=spoil)
    assert j.reason.index == (97, 3)
    rolled = judged(
        "rmsnorm", BF16, k.rmsnorm, dims, spoil=lambda o, _: o.update(y=np.roll(o["y"], 1, 0))
    )
    assert rolled.verdict == "FAIL"


def test_a_power_below_the_normal_numbers_may_be_flushed_and_no_other():
    """e^-87.337 is 0.9995 of 2^-126: 0 takes that share of D; e^-87.3 is above, and 0 is wrong."""
    contract = RowContract("softmax", "fp32", "fp32")
    x = np.array([[0.0, -87.337, -87.3, -110.0]])
    (right,) = ops.get("softmax").answers(contract, {"x": x})
    got = np.exp(x)
    got[0, 1:] = 0.0
    assert list(right.right(got)[0]) == [True, True, False, True]
    share = right.share(got)[0]
    assert 0.999 < share[1] < 1 < share[2]
    assert share[3] < 1e-9


def test_copies_with_the_same_bits_are_judged_once(monkeypatch):
    """What a large array costs is reading it: its copies stand for each other, in every number."""
    decoded = []

    def counting(fmt, stored):
        decoded.append(len(stored))
        return rows_data.decode(fmt, stored)

    answer = RowData(ops.get("softmax"), SOFTMAX, {"rows": 13, "cols": 64}, 0, Cache())
    right = answer.family(get_family("normal")).answers[0]
    monkeypatch.setattr(rows_measure, "decode", counting)
    stored = encode("bf16", np.resize(right.ideal(), (100, 64)))
    found = list(rows_measure.bands(right, right.r1, stored))
    assert [(b.first, len(b.got), b.times) for b in found] == [(0, 13, 7), (91, 9, 1)]
    assert decoded == [13, 9]
    stored[40, 3] ^= 1
    stored[95, 0] ^= 1
    found = list(rows_measure.bands(right, right.r1, stored))
    assert [(b.first, len(b.got), b.times) for b in found] == [(0, 13, 6), (39, 13, 1), (91, 9, 1)]


@pytest.mark.parametrize("rows", [14, 100, 997, 100000])
def test_distinct_rows_are_prime_in_number(rows):
    count = rows_data.distinct_rows(rows, 1 << 18)
    assert count == rows or all(count % p for p in range(2, count))


def test_a_block_that_goes_on_to_its_next_row_meets_another_one():
    distinct = rows_data.distinct_rows(4096, 1 << 18)
    cards = (28, 40, 46, 56, 58, 68, 70, 72, 76, 80, 84, 108, 114, 128, 132, 148)
    for multiprocessors in cards:
        assert all(multiprocessors * blocks % distinct for blocks in range(1, 13))
    for cluster in (2, 4, 8, 16):  # of an H200, as many as are resident
        assert all(132 * blocks // cluster % distinct for blocks in (1, 2, 3, 4))


def test_contract_only_demonstrates_what_the_ceiling_misses():
    wrong = {"how": {"total": k.narrow_sum("bf16")}, "rests_on": "contract"}
    j = judged("softmax", BF16, k.softmax, {"rows": 7, "cols": 1000}, **wrong)
    assert j.verdict != "FAIL"
    assert (
        judged("softmax", BF16, k.softmax, {"rows": 7, "cols": 1000}, how=wrong["how"]).verdict
        == "FAIL"
    )


def test_what_breaks_a_ceiling_that_can_be_met_fails_by_it_alone():
    def half(outputs, poison):
        outputs["y"] *= np.float32(0.5)

    j = judged("softmax", Row("fp32", "fp32"), k.softmax, spoil=half, rests_on="contract")
    assert j.verdict == "FAIL"
    assert "contract" in {r.code for r in j.reasons}


def test_the_cache_changes_nothing():
    cache = Cache()
    first = judged("layernorm", BF16, k.layernorm, cache=cache)
    again = judged("layernorm", BF16, k.layernorm, cache=cache)
    alone = judged("layernorm", BF16, k.layernorm)
    assert first.to_record() == again.to_record() == alone.to_record()


REFUSED = [
    ({"rows": 0, "cols": 3}, "rows = 0 is outside"),
    ({"rows": 3, "cols": 0}, "cols = 0 is outside"),
    ({"rows": 3, "cols": 2.5}, "whole number"),
    ({"rows": 3}, "has the dims rows, cols"),
    ({"rows": 1 << 30, "cols": 1 << 28}, "more than 2\\^40"),
]


@pytest.mark.parametrize(("dims", "message"), REFUSED, ids=lambda v: str(v)[:25])
def test_impossible_dims_are_refused(dims, message):
    with pytest.raises(UsageError, match=message):
        ops.get("softmax").check_dims(dims)


def test_unknown_names_are_refused():
    judge = partial(ops.get("rmsnorm").judge, dims=DIMS, run=None, capability=(8, 9))
    with pytest.raises(UsageError, match="no contract 'half'"):
        judge(Row("bf16", "bf16", "half"))
    with pytest.raises(UsageError, match="unknown input family"):
        judge(BF16, families=["nothing"])
    with pytest.raises(UsageError, match="unknown effort"):
        judge(BF16, effort="some")
    with pytest.raises(UsageError, match="at least one input family"):
        judge(BF16, families=[])


def test_labels_outside_the_columns_are_refused():
    check = ops.get("crossentropy").check_labels
    check([0, 4, -100], 5)
    with pytest.raises(UsageError, match=r"label 5 of row 1 is outside 0 \.\. 4"):
        check([0, 5], 5)
