"""Large sizes of attention: what is drawn, checked and worked out once, and on how many cores."""

import threading

import attention_kernels as kernels
import numpy as np
import pytest
from attention_kernels import Row, dims, sees

from gpulab.formats import blas, decode, encode, threads
from gpulab.numerics.cache import Cache
from gpulab.ops import attention_data, attention_families, attention_probes
from gpulab.ops.attention import ATTENTION
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_families import draw, get_family
from gpulab.ops.attention_mutants import STANDARD
from gpulab.ops.attention_probes import ONE_HOT, probes
from gpulab.ops.attention_whole import findings

NORMAL = get_family("normal")
BENCH = [
    dims(batch=16384 // n, heads=16, kv_heads=16, seq_q=n, seq_k=n, head_dim=128)
    for n in (4096, 16384)
]


def data(d, fmt="fp16", cache=None, seed=0):
    return Data(AttentionContract.of(Row(fmt), (8, 9)), d, seed, cache or Cache())


@pytest.fixture
def sampled(monkeypatch):
    """Every size is a large one, of which six queries a head are checked."""
    monkeypatch.setattr(attention_data, "FULL_PRODUCTS", 1)
    monkeypatch.setattr(attention_data, "SAMPLED_PRODUCTS", 6 * 45 * 24 * 2)
    return dims(seq_q=61)


@pytest.mark.parametrize("d", BENCH, ids=lambda d: str(d["seq_q"]))
def test_the_heads_of_a_benchmark_look_at_every_tile_of_queries_together(d):
    of = data(d)
    wanted, text, share = of.sample
    heads = [of._queries(h, wanted) for h in range(d["batch"] * d["heads"])]
    seen = np.unique(np.concatenate(heads))
    assert set(seen // 64) == set(range(d["seq_q"] // 64))
    for queries in heads:
        assert (queries[0], queries[-1]) == (0, d["seq_q"] - 1)
        assert len(set(queries * wanted // d["seq_q"])) == wanted  # each strip of every head
    assert share == pytest.approx(len(heads[0]) / d["seq_q"])
    assert text.startswith(f"{len(heads[0])} of {d['seq_q']} queries of each of {len(heads)} heads")
    assert "seeded, over all keys" in text
    assert not np.array_equal(heads[3], data(d, seed=1)._queries(3, wanted))


@pytest.mark.parametrize("d", [dims(heads=3, kv_heads=3, seq_q=5), dims(seq_q=1)])
def test_more_queries_wanted_than_there_are_is_all_of_them(d):
    for wanted in (d["seq_q"], 100):
        assert data(d)._queries(1, wanted).tolist() == list(range(d["seq_q"]))


def test_a_sample_says_so_and_its_mutants_are_caught(sampled):
    found = ATTENTION.judge(
        Row("fp16"), sampled, kernels.Kernel(Row("fp16"), sampled), capability=(8, 9)
    )
    assert found.verdict == "PASS", found.reasons
    record = found.to_record()
    assert record["coverage"]["share"] == pytest.approx(8 / 61, abs=2 / 61)
    assert "of 61 queries of each of 2 heads, seeded, over all keys" in record["coverage"]["text"]
    status = {c.mutant: c.status for c in found.power}
    applicable = {m.name for m in STANDARD} - {"mask_zero", "causal_off_by_one"}
    assert all(status[name] == "caught" for name in applicable), status


@pytest.mark.parametrize(
    "kernel", [kernels.HalfScores, kernels.WrongLse, kernels.NoRescale, kernels.SkipsLastQuery]
)
def test_wrong_kernels_fail_on_a_sample(sampled, kernel):
    row = Row("fp16")
    found = ATTENTION.judge(row, sampled, kernel(row, sampled), capability=(8, 9))
    assert found.verdict == "FAIL"


def test_an_element_that_is_never_written_or_changes_is_seen_outside_of_the_sample(sampled):
    row, right = Row("fp16"), kernels.exactly(Row("fp16"), sampled)
    checked = data(sampled)._queries(1, data(sampled).sample[0])
    at = next(i for i in range(61) if i not in checked)
    for code, value in (("unwritten", lambda p: p * 0x101), ("nondeterministic", lambda p: p)):

        def run(inputs, *, poison, value=value):
            result = right(inputs, poison=poison)
            result.outputs["out"].view(np.uint16)[0, 1, at, 7] = value(poison)
            return result

        found = ATTENTION.judge(row, sampled, run, capability=(8, 9), families=["normal"])
        assert found.reasons[0].code == code
        assert found.reasons[0].index == (0, 1, at, 7)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("out", np.nan, "nonfinite"),
        ("out", -np.inf, "nonfinite"),
        ("out", -60.0, "interval"),
        ("lse", np.nan, "nonfinite"),
        ("lse", -np.inf, "nonfinite"),
    ],
)
def test_what_no_mean_can_be_is_seen_outside_of_the_sample(sampled, name, value, code):
    row, right = Row("fp16"), kernels.Kernel(Row("fp16"), sampled)
    checked = data(sampled)._queries(1, data(sampled).sample[0])
    at = (0, 1, next(i for i in range(61) if i not in checked), 7)

    def run(inputs, *, poison):
        result = right(inputs, poison=poison)
        array = result.outputs[name]
        array.view(np.float16 if name == "out" else np.float32)[at[: array.ndim]] = value
        return result

    found = ATTENTION.judge(row, sampled, run, capability=(8, 9), families=["normal"])
    assert {r.code for r in found.reasons} == {code}
    assert found.reasons[0].index == at[: 4 if name == "out" else 3]
    assert found.verdict == "FAIL"


@pytest.mark.parametrize(
    ("row", "change"),
    [
        (Row("fp16"), {}),
        (Row("bf16"), {"causal": 1, "seq_q": 61}),  # the first queries see no key
        (Row("fp32"), {"mask_planes": 1}),
        (Row("e4m3", output="bf16", contract="block-scaled"), {}),
    ],
    ids=lambda x: getattr(x, "format", str(x)),
)
def test_right_results_are_means_in_every_family_and_probe(row, change):
    d = dims(**change)
    of = Data(AttentionContract.of(row, (8, 9)), d, 0, Cache())
    families = attention_families.families_for(row.format)
    every = [of.family(get_family(name)) for name in families]
    for inputs in (*every, *(p.inputs(of) for p in probes("full"))):
        outputs = kernels.exactly(row, d)(inputs.stored, poison=0).outputs
        assert findings(of, inputs, outputs) == []
    outputs["out"][...] = encode(row.output, np.array([np.nan]))
    assert findings(of, every[0], outputs)[0].code == "nonfinite"
    assert findings(of, inputs, outputs) == []  # those of the last probe are not finite


def test_every_key_head_is_drawn_from_a_stream_of_its_own(monkeypatch):
    d = dims(batch=2, heads=4, kv_heads=2, seq_q=9, seq_k=11)
    whole = draw(NORMAL, d, "fp16", 3)
    assert len(np.unique(whole["q"])) == whole["q"].size
    assert len(np.unique(np.concatenate([whole[n].ravel() for n in "kv"]))) == 2 * whole["k"].size
    first = draw(NORMAL, d | {"batch": 1}, "fp16", 3)
    np.testing.assert_array_equal(first["q"][0], whole["q"][0])
    monkeypatch.setattr(threads, "LEAST", 0)
    monkeypatch.setattr(threads, "workers", lambda: 3)
    at_once = draw(NORMAL, d, "fp16", 3)
    for name in "qkv":
        assert at_once[name].dtype == np.float32
        np.testing.assert_array_equal(at_once[name], whole[name])


def test_formats_and_causality_share_what_is_drawn(monkeypatch):
    drawn, exact = [], []
    for found, name in ((drawn, "draw"), (exact, "exact")):
        original = getattr(attention_data, name)
        monkeypatch.setattr(
            attention_data, name, lambda *a, f=original, n=found: n.append(a) or f(*a)
        )
    cache = Cache()
    first = {}
    for causal in (0, 1):
        for fmt in ("fp16", "bf16"):
            of = data(dims(causal=causal), fmt, cache)
            inputs = of.family(NORMAL)
            values = np.concatenate([p.r0 for p in of.pieces(inputs)])
            alike = first.setdefault(causal, values)
            np.testing.assert_array_equal(values, alike)
            assert ATTENTION.stored_inputs(Row(fmt), of.dims, "normal", 0, cache) is inputs.stored
    assert len(drawn) == 1
    assert len(exact) == 2 * 2  # heads, with causality and without
    assert not np.array_equal(first[0], first[1])
    for name in ("near_max", "outlier_row", "small"):
        for fmt in ("fp16", "bf16"):
            data(dims(), fmt, cache).family(get_family(name))
    assert len(drawn) == 7


def test_kernels_of_one_contract_share_the_answers(monkeypatch):
    asked, original = [], attention_data.answer
    monkeypatch.setattr(attention_data, "answer", lambda *a: asked.append(a) or original(*a))
    cache = Cache()
    one = data(dims(), cache=cache)
    for _ in range(2):
        assert [p.head for p in one.pieces(one.family(NORMAL))] == [0, 1]
    assert len(asked) == 2
    other = data(dims(), "bf16", cache=cache)
    list(other.pieces(other.family(NORMAL)))
    assert len(asked) == 4


@pytest.mark.parametrize(
    "d",
    [dims(), dims(causal=1, seq_q=50), dims(window=3), dims(causal=1, mask_planes=2, batch=2)],
)
def test_the_one_hot_probe_singles_out_a_key_that_is_seen(d):
    inputs = ONE_HOT.inputs(data(d)).stored
    q, k = decode("fp16", inputs["q"]), decode("fp16", inputs["k"])
    targets = (q @ k[:, 0, None].transpose(0, 1, 3, 2)).argmax(axis=-1)
    for entry in range(d["batch"]):
        plane = inputs["mask"][entry : entry + 1]
        for i in range(d["seq_q"]):
            mine = [sees(d, 0, i, j, plane) for j in range(d["seq_k"])]
            for head in range(d["heads"]):
                assert mine[targets[entry, head, i]] or not any(mine)
    assert len(np.unique(targets)) > 10


def test_the_keys_that_a_mask_leaves_are_found_a_band_at_a_time(monkeypatch):
    d = dims(causal=1, mask_planes=1)
    whole = ONE_HOT.inputs(data(d)).stored
    monkeypatch.setattr(attention_probes, "_SEEN_AT_ONCE", 4 * d["seq_k"])
    np.testing.assert_array_equal(ONE_HOT.inputs(data(d)).stored["q"], whole["q"])


def test_blas_has_one_thread_inside_and_its_own_again_after():
    found = blas._openblas()
    if found is None:
        pytest.skip("NumPy has another BLAS")
    tell, change = found
    before = tell()
    change(2)
    try:
        with blas.one_thread():
            with blas.one_thread():
                assert tell() == 1
            assert tell() == 1
            list(threads.each(lambda _: None, [1, 2]))
            assert tell() == 1
        assert tell() == 2
        with pytest.raises(ZeroDivisionError), blas.one_thread():
            raise ZeroDivisionError
        assert tell() == 2
        assert list(threads.each(lambda _: tell(), [1, 2])) == [1, 1]
    finally:
        change(before)


def test_libraries_are_found_in_folders_with_spaces_and_those_that_are_gone_are_not(tmp_path):
    folder = tmp_path / "my openblas folder"
    folder.mkdir()
    for name in ("libopenblas.so", "libm.so"):
        (folder / name).touch()
    lines = [
        f"7f00-7f01 r-xp 00000000 00:1d 42        {folder / name}"
        for name in ("libopenblas.so", "libopenblas.so", "libm.so", "libopenblas.so.2 (deleted)")
    ]
    text = "\n".join(
        [*lines, "7f02-7f03 rw-p 00000000 00:00 0 ", "7f04-7f05 rw-p 0 00:00 0 [heap]"]
    )
    assert blas.mapped(text) == [str(folder / "libopenblas.so")]


def test_little_work_is_not_handed_out():
    here = threading.get_ident()
    assert set(threads.each(lambda _: threading.get_ident(), [1, 2], 10)) == {here}
    assert here not in set(threads.each(lambda _: threading.get_ident(), [1, 2], threads.LEAST))


def test_families_say_whether_their_values_depend_on_the_format():
    d = dims(seq_q=7, seq_k=9)
    for name, family in attention_families.FAMILIES.items():
        pairs = [("fp32", "fp16"), ("fp16", "bf16"), ("bf16", "e4m3")]
        made = [p for p in pairs if all(name in attention_families.families_for(f) for f in p)]
        alike = all(
            np.array_equal(draw(family, d, a, 0)[x], draw(family, d, b, 0)[x])
            for a, b in made
            for x in "qkv"
        )
        assert alike is not family.by_format, name
