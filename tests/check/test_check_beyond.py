"""Inputs, scalars and shapes that wrong kernels of learners had passed by not being asked for."""

from pathlib import Path

import pytest

from gpulab import exercises

WRONG = Path(__file__).resolve().parents[1] / "submissions" / "wrong"


UNUSED = [
    ("softmax/missing-max/from_minus_1000.cu", "missing-max", "rows far below zero: the",
     "-FLT_MAX"),
    ("rmsnorm/typed-in/eps.cu", "typed-in", "the result is that of eps = 1e-06: ",
     "use the parameter eps"),
    ("cross-entropy/typed-in/ignore_index.cu", "typed-in", "that of ignore_index = -100: ",
     "use the parameter ignore_index"),
    ("bf16-matmul/rounded-inputs/through_half.cu", "rounded-inputs", "B near the smallest: the",
     "convert each element to float"),
    ("dequant-int4/flushed-subnormals/halves_by_hand.cu", "flushed-subnormals",
     "A below the smallest normal number: subnormal", "__half2float"),
    ("softmax/missing-max/last_columns_left_out.cu", "missing-max",
     "one column far above the others: the", "in all the columns"),
    ("attention/no-max/from_minus_10000.cu", "no-max", "scores far below zero: the",
     "-FLT_MAX"),
    ("fp16-matmul/nonfinite/last_term_again.cu", "nonfinite", "infinity in the last term",
     "zeros of both"),
    ("fp16-matmul/nonfinite/skips_zeros.cu", "nonfinite", "infinity in the last term",
     "skip no zero"),
]  # fmt: skip
"""A submission, its diagnosis, and what is said."""


@pytest.mark.parametrize(("path", "slug", "text", "fix"), UNUSED)
def test_what_the_gates_do_not_use(path, slug, text, fix, judged):
    result = judged(WRONG / path, timed=False)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert result.diagnosis.slug == slug
    assert text in result.diagnosis.text
    assert fix in result.diagnosis.fix
    assert "replay" in result.facts


def test_a_counter_that_is_set_back_is_not_what_a_launch_leaves_behind(judged):
    result = judged(WRONG.parent / "correct" / "rmsnorm" / "last_block.cu", timed=False)
    assert result.verdict == "PASS", result.diagnosis
    (state,) = [s for s in result.stages if s.name == "state"]
    assert (state.status, state.text) == ("PASS", "parts change, the result does not")


def test_subnormal_scales_are_asked_for_too(judged, tmp_path):
    text = (WRONG / "dequant-int4" / "flushed-subnormals" / "halves_by_hand.cu").read_text()
    path = tmp_path / "scales.cu"
    assert "widen(a[" in text
    path.write_text(text.replace("widen(a[", "__half2float(a["))
    result = judged(path, timed=False)
    assert result.diagnosis.slug == "flushed-subnormals"
    assert "scales below the smallest" in result.diagnosis.text


def asked(name, dim):
    return [shape.dims[dim] for shape in exercises.get(name).shapes]


@pytest.mark.parametrize("name", list(exercises.catalogue()))
def test_a_vector_path_that_asks_too_little_meets_a_length_it_is_wrong_at(name):
    """Odd rows; multiples of 2, of 4 and of 8 that are no more than that."""
    along = {"matmul": "nk", "int4_matmul": "n", "attention": ("head_dim",)}
    for dim in along.get(exercises.get(name).op, ("cols",)):
        steps = {(n & -n) for n in asked(name, dim) if n > 1}
        assert {1, 2, 4} <= steps
        assert max(steps) >= 8


@pytest.mark.parametrize("name", list(exercises.catalogue()))
def test_rows_have_a_tail_where_all_else_is_whole_vectors(name):
    dims = {
        "matmul": ("m", "nk"),
        "int4_matmul": ("m", "nk"),
        "attention": ("seq_k", ("head_dim",)),
    }
    first, whole = dims.get(exercises.get(name).op, ("rows", ("cols",)))
    least = 4 if exercises.get(name).op in ("int4_matmul", *ROWS) else 8
    found = [
        s.dims for s in exercises.get(name).shapes if all(s.dims[w] % least == 0 for w in whole)
    ]
    assert any(d[first] % 8 for d in found)


ROWS = ("softmax", "logsoftmax", "crossentropy", "rmsnorm", "layernorm")


def test_a_group_of_int4_is_no_power_of_two_somewhere():
    assert any(g & (g - 1) for g in asked("dequant-int4", "group"))


@pytest.mark.parametrize("name", sorted(exercises.catalogue()))
def test_each_dim_is_one_where_others_are_not(name):
    exercise = exercises.get(name)
    free = [d for d in exercise.dims if d not in ("batch", "heads", "causal", "group")]
    looked = [s.dims for s in (*exercise.shapes, exercise.longest)]
    for dim in free:
        others = [d for d in free if d != dim]
        assert any(s[dim] == 1 and max(s[d] for d in others) > 1 for s in looked), dim


@pytest.mark.parametrize("name", sorted(exercises.catalogue()))
def test_a_buffer_of_twice_what_is_timed_is_too_small_for_the_longest(name):
    exercise = exercises.get(name)
    (grown,) = [d for d in exercise.dims if exercise.longest.dims[d] > exercise.timed[d]]
    # In halves: a card rounds a block's shared memory up, and does not see what ends in there.
    assert (exercise.longest.dims[grown] - 2 * exercise.timed[grown]) * 2 >= 1024
