"""Explanations: declarations of every row, and what the compiled objects of a handful show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from explain_rows import ADA, ROWS, analysed, label, row

from gpulab import ops, registry
from gpulab.emulator.ptx.nodes import Instr
from gpulab.errors import UsageError
from gpulab.explain import arithmetic, cost, names, report, risks
from gpulab.ops import formulas
from gpulab.registry import Case
from gpulab.runtime.emulated import EmulatedDevice

LESSONS = [Case(c.spec, c.spec.variants[0]) for c in ROWS if c.spec.twin]
LESSONS = list({c.spec.name + c.spec.op: c for c in LESSONS}.values())


def taken(analysis):
    return {r.risk for r in analysis.risks if r.taken}


def disagreeing(analysis):
    return {c.what for c in analysis.claims if not c.agrees}


# -- every row, from its declaration ---------------------------------------------------------------


@pytest.mark.parametrize("case", ROWS, ids=label)
def test_the_formula_of_every_row_ends_in_its_outputs_as_they_are_stored(case):
    capability = case.spec.only_capability or max(case.variant.min_capability, ADA)
    lines = formulas.of(case.spec.op, case.variant, capability)
    results = {line.name: line for line in lines}
    for p in case.spec.params(case.variant):
        if p.role == "out":
            assert results[p.name].format == p.format
            if formulas.narrow(p.format):
                assert results[p.name].kind == "cast"
                assert f"'{p.format}'" in results[p.name].text
    known = {p.name for p in case.spec.params(case.variant)} | set(formulas.FUNCTIONS)
    known |= {"n", "scale", "power"}
    for line in lines:
        formats = set(re.findall(r"'(\w+)'", line.text))
        assert line.names - formats <= known, "a name that nothing defines"
        known.add(line.name)


@pytest.mark.parametrize("op", sorted({c.spec.op for c in ROWS}))
def test_sizes_are_dims_of_the_operation_and_its_kernels_run_there(op):
    size = formulas.sizes(op)
    for dims in (size.small, size.grown, size.timed):
        ops.get(op).check_dims(dims)
    assert size.grown != size.small
    for case in (c for c in ROWS if c.spec.op == op and not c.variant.lesson):
        if case.spec.build is not None and not case.spec.only_capability:
            assert case.spec.supports(case.variant, (12, 0), size.small) is None


def test_every_row_can_be_named_and_its_spelling_finds_it_again():
    for case in ROWS:
        text = names.spelled(case, ROWS)
        name, *options = text.split()
        said = dict(zip(options[::2], options[1::2], strict=True))
        wanted = names.Wanted(**{k.removeprefix("--"): v for k, v in said.items()})
        assert names.find(name, wanted) == case, text


@pytest.mark.parametrize("case", [c for c in ROWS if c.variant.lesson], ids=label)
def test_every_lesson_has_a_twin_that_is_right(case):
    (pair,) = cost.pairs(case)
    wrong, right = pair
    assert wrong.variant is case.variant
    assert not right.variant.lesson
    assert right.variant.contract == case.variant.contract
    assert right.spec.params(right.variant) == case.spec.params(case.variant)


def test_a_name_that_fits_nothing_or_several_is_refused_with_the_candidates():
    with pytest.raises(UsageError, match="no kernel 'raw/none'") as error:
        names.find("raw/none", names.Wanted())
    assert "raw/wgmma" in error.value.fix
    with pytest.raises(UsageError, match="names 9 rows") as error:
        names.find("raw/online", names.Wanted())
    assert "raw/online --op softmax --format fp16" in error.value.fix
    with pytest.raises(UsageError, match="raw/blocked has no format 'fp16'") as error:
        names.find("raw/blocked", names.Wanted(format="fp16"))
    assert error.value.fix == "choose one of: fp32"
    with pytest.raises(UsageError, match="raw/blocked has no contract 'x'") as error:
        names.find("raw/blocked", names.Wanted(contract="x"))
    assert error.value.fix == "leave --contract out"
    with pytest.raises(UsageError, match="no row with --op attention --format tf32") as error:
        names.find("raw/mma", names.Wanted(op="attention", format="tf32"))
    assert "raw/mma --op matmul --format tf32" in error.value.fix


def test_a_capability_that_lacks_the_row_is_refused_only_where_it_was_asked_for():
    wgmma = row("matmul", "wgmma", "fp16", output="fp32")
    assert report.capability_for(wgmma, EmulatedDevice(ADA), asked=False) == (9, 0)
    with pytest.raises(UsageError, match="needs sm_90"):
        report.capability_for(wgmma, EmulatedDevice(ADA), asked=True)
    tf32 = row("matmul", "mma", "tf32")
    assert report.capability_for(tf32, EmulatedDevice((7, 5)), asked=False) == (8, 0)


# -- the compiled objects of a handful -------------------------------------------------------------

SEEN = {
    ("softmax", "no_max"): ({"overflow"}, set()),
    ("softmax", "half_sum"): ({"stagnation", "rounding"}, set()),
    ("softmax", "half_exp"): ({"double rounding"}, {"rounded and used again"}),
    ("softmax", "no_rescale"): ({"wrong weights"}, set()),
    ("softmax", "index32"): ({"wrapping"}, set()),
    ("rmsnorm", "half_sum"): ({"stagnation", "rounding"}, set()),
    ("rmsnorm", "early_rounding"): ({"double rounding"}, {"rounded and used again"}),
    ("layernorm", "naive_variance"): ({"cancellation"}, set()),
    ("logsoftmax", "log_of_softmax"): ({"underflow"}, set()),
    ("crossentropy", "log_of_softmax"): ({"underflow"}, set()),
    ("attention", "minus_1e9_half"): ({"double rounding"}, {"rounded and used again"}),
    ("attention", "scale_after_half"): ({"double rounding"}, {"rounded and used again"}),
    ("attention", "no_rescale"): ({"wrong weights"}, set()),
    # What these get wrong is which keys are seen: no step of arithmetic.
    ("attention", "mask_zero"): (set(), set()),
    ("attention", "causal_off_by_one"): (set(), set()),
    ("attention", "tail_unmasked"): (set(), set()),
}
"""Lesson -> the risks it takes, and the claims it breaks: each what its name says."""


@pytest.mark.parametrize("case", LESSONS, ids=label)
def test_a_lesson_shows_its_mistake_and_no_other(case):
    found = analysed(case)
    assert (taken(found), disagreeing(found)) == SEEN[case.spec.op, case.spec.name]


HONEST = {
    ("softmax", "two_pass", "raw", "fp32"): {"exponentials"},
    ("softmax", "plain_online", "raw", "bf16"): {"exponentials"},
    ("rmsnorm", "plain_residual", "raw", "bf16"): {"squares"},
    ("rmsnorm", "residual_rounded", "raw", "bf16"): {"squares"},
    ("layernorm", "plain", "raw", "fp16"): {"values", "squares"},
    ("logsoftmax", "plain", "raw", "fp16"): {"exponentials"},
    ("crossentropy", "online", "raw", "bf16"): {"exponentials"},
    ("attention", "mma", "raw", "fp16"): {"products", "exponentials", "weighted by exponentials"},
    ("matmul", "simt", "numba", "fp32"): {"products"},
    ("matmul", "mma_3xtf32", "raw", "fp32"): {"products", "values"},
    ("softmax", "online", "numba", "fp16"): {"exponentials"},
}
"""Row -> what it sums."""


@pytest.mark.parametrize("key", HONEST, ids="-".join)
def test_an_honest_kernel_is_what_it_declares_and_takes_no_risk(key):
    op, name, backend, fmt = key
    found = analysed(row(op, name, fmt, backend))
    assert (taken(found), disagreeing(found)) == (set(), set())
    sums = {r.step for r in found.risks if r.step.startswith("sum")}
    wanted = {w if w.startswith("weighted") else f"of {w}" for w in HONEST[key]}
    assert sums == {f"sum {w}" for w in wanted}
    for risk in found.risks:
        for place in risk.places:
            assert place.text, f"{place} is no line of the lab's sources"


def test_places_are_the_lines_that_do_it():
    def lines(case, step):
        return {p.text for r in analysed(case).risks if r.step.startswith(step) for p in r.places}

    (squares,) = lines(row("rmsnorm", "plain_residual", "bf16"), "sum of squares")
    assert squares == "sum = fmaf(value, value, sum);"
    rounded = lines(row("rmsnorm", "residual_rounded", "bf16"), "rounding of stored")
    assert rounded == {"round_through<T>(value);"}
    (powers,) = lines(row("softmax", "online", "fp16", "numba"), "sum of exponentials")
    assert powers == "total += exp(values[j] - base)", "Numba's own .loc names another file"


def test_a_rounding_that_no_instruction_does_is_seen():
    found = analysed(row("softmax", "plain", "bf16"), (7, 5))  # bf16 by integer operations
    assert disagreeing(found) == set()
    assert "bf16" in {c.compiled for c in found.claims if c.what == "y rounded to"}


@pytest.mark.parametrize(
    ("case", "lie", "broken"),
    [
        (row("softmax", "plain", "fp16"), {"accumulator": "fp16"}, "running sums kept in"),
        (
            row("softmax", "plain", "fp16"),
            {"instructions": (((7, 5), "mma.sync.m16n8k8.f32.f16.f16.f32"),)},
            "products by",
        ),
        (
            row("rmsnorm", "residual_rounded", "bf16"),
            {"contract": "fp32-sum"},
            "rounded and used again",
        ),
        (
            row("rmsnorm", "plain_residual", "bf16"),
            {"contract": "rounded-sum"},
            "rounded and used again",
        ),
    ],
    ids=["accumulator", "instruction", "rounding too many", "rounding too few"],
)
def test_a_wrong_declaration_shows(case, lie, broken):
    assert disagreeing(analysed(case)) == set()
    lied = Case(case.spec, replace(case.variant, **lie))
    assert broken in disagreeing(analysed(lied))


def test_a_wrong_output_format_shows():
    case = row("softmax", "plain", "fp32")
    spec = replace(case.spec, build=lambda v, c, d: case.spec.build(case.variant, c, d))
    claimed = Case(spec, replace(case.variant, output="bf16"))
    assert "y rounded to" in disagreeing(analysed(claimed))


DOUBLE = """
extern "C" __global__ void k(const float* x, float* y, int rows, int cols) {
    double sum = 0.0;
    for (int c = threadIdx.x; c < cols; c += 32) sum += x[c] * 0.5;
    y[threadIdx.x] = sum;
}
"""


def test_a_sum_in_double_precision_shows(tmp_path):
    (tmp_path / "double.cu").write_text(DOUBLE)
    case = row("softmax", "plain", "fp32")
    build = registry.RawBuild(str(tmp_path / "double.cu"), "k")
    found = analysed(Case(replace(case.spec, build=lambda v, c, d: build), case.variant))
    assert disagreeing(found) >= {"running sums kept in", "computed in"}


POWER = """#include <cuda_bf16.h>
extern "C" __global__ void k(const __nv_bfloat16* x, __nv_bfloat16* y, int rows, int cols) {
    const __nv_bfloat16 v = x[threadIdx.x];
    y[threadIdx.x] = %s;
}
"""


@pytest.mark.parametrize(
    ("made", "rounded", "steps"),
    [("__hmul(v, v)", "bf16", set()), ("__hfma(v, v, v)", "never rounded", {"fma in bf16"})],
)
def test_a_multiply_add_is_a_product_where_it_adds_minus_zero(tmp_path, made, rounded, steps):
    """As bf16 is multiplied before sm_90; one that adds more is no rounding."""
    (tmp_path / "power.cu").write_text(POWER % made)
    case, build = (
        row("softmax", "plain", "bf16"),
        registry.RawBuild(str(tmp_path / "power.cu"), "k"),
    )
    found = analysed(Case(replace(case.spec, build=lambda v, c, d: build), case.variant))
    assert {c.compiled for c in found.claims if c.what == "y rounded to"} == {rounded}
    assert {r.step for r in found.risks if r.step.endswith("in bf16")} == steps


@pytest.mark.parametrize(
    ("kernel", "contract", "squares", "difference"),
    [
        ("two_pass", "two-pass", "again times a tiny power of two", "nothing large cancels"),
        ("welford", "welford", "again times a tiny power of two", "nothing large cancels"),
        ("naive_variance", "two-pass", "overflow is not caught", "nothing"),
    ],
)
def test_a_shift_that_is_subtracted_by_fma_and_a_scale_before_it_are_seen(
    kernel, contract, squares, difference
):
    found = analysed(row("layernorm", kernel, "bf16", output="bf16", contract=contract))
    kept = {r.step: r.mitigation for r in found.risks}
    assert kept["sum of squares"].endswith(squares)
    assert kept["difference of two sums"].endswith(difference)
    assert ("difference to another thread's mean" in kept) == (kernel == "two_pass")
    assert (risks.NOTHING in kept.values()) == (kernel == "naive_variance")


def test_the_split_of_a_float32_product_is_read_from_its_instructions():
    case = row("matmul", "mma_3xtf32", "fp32")
    found = analysed(case)
    (reused,) = (c for c in found.claims if c.what == "rounded and used again")
    assert (reused.declared, reused.compiled) == ("1 in a row, to tf32",) * 2
    kept = {r.mitigation for r in found.risks if r.step == "sum of products"}
    assert kept == {"a float32 accumulator", "kept in float32"}  # the small parts'; sum_again's
    assert "tf32" not in {r.format for r in analysed(row("matmul", "blocked", "fp32")).risks}


@pytest.mark.parametrize(
    ("opcode", "fmt", "rounds"),
    [
        ("fma.rn.f32.f16", "fp32", None),  # of two halves and a float32
        ("add.rn.f32.bf16", "fp32", None),
        ("fma.rn.f16x2", "fp16", None),  # a fused one is no float32 result that is rounded
        ("mul.rn.f16", "fp16", "fp16"),
        ("cvt.rn.bf16x2.f32", "bf16", "bf16"),
        ("cvt.f32.f16", "fp32", None),
        ("cvt.rn.f16x2.e4m3x2", "fp16", None),
        ("cvt.rn.satfinite.e4m3x2.f32", "e4m3", "e4m3"),
        ("cvt.rn.f32.f64", "fp32", "fp32"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "fp32", None),
    ],
)
def test_an_opcode_says_what_it_gives_and_whether_it_rounds(opcode, fmt, rounds):
    instr = Instr(opcode, ())
    assert arithmetic.result_format(instr) == fmt
    assert arithmetic.rounds_to(instr) == rounds
