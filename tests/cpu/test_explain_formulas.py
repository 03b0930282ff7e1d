"""The printed formulas, evaluated, are the references that judge the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpulab import ops
from gpulab.errors import UsageError
from gpulab.formats import get
from gpulab.numerics.rounding import through
from gpulab.ops import attention_formula, formulas
from gpulab.ops.rows_arith import EXACT
from gpulab.registry import Variant

CASES = [
    ("softmax", "", "fp16", "fp16"),
    ("logsoftmax", "", "bf16", "bf16"),
    ("crossentropy", "", "fp16", "fp32"),
    ("rmsnorm", "", "fp16", "fp16"),
    ("rmsnorm", "", "e4m3", "bf16"),
    ("rmsnorm", "fp32-sum", "bf16", "bf16"),
    ("rmsnorm", "rounded-sum", "bf16", "bf16"),
    ("layernorm", "two-pass", "fp16", "fp16"),
    ("layernorm", "welford", "bf16", "bf16"),
]


def row_values(op, contract, rows=5, cols=64):
    rng = np.random.default_rng(1)
    shapes = {"rows": (rows, cols), "parameter": (1, cols)}
    values = {}
    for one in op.inputs(contract):
        if one.kind == "labels":
            values[one.name] = np.array([0, 7, -100, 63, 1])
        else:
            drawn = rng.normal(size=shapes[one.kind])
            values[one.name] = through(get(one.format), drawn)
    return values


@pytest.mark.parametrize(("name", "contract", "fmt", "output"), CASES)
def test_a_row_formula_gives_what_the_judge_has(name, contract, fmt, output):
    op = ops.get(name)
    variant = Variant(fmt, "fp32", output, contract=contract)
    held = op.contract(variant)
    values = row_values(op, held)
    constants = {"n": 64.0, **op.scalars(variant, {"rows": 5, "cols": 64})}
    shaped = {k: v[:, None] if k == "labels" else v for k, v in values.items()}
    found = formulas.evaluate(formulas.of(name, variant, (8, 9)), {**constants, **shaped})
    flat = {k: v[0] if v.shape[0] == 1 else v for k, v in values.items()}
    for output_name, right in op.stored_values(EXACT, held, flat).items():
        got = found[output_name].reshape(right.shape)
        fmt_out = op.output_format(output_name, held)
        # One unit in the last place where float64 falls on another side of a tie.
        apart = np.abs(got - right) > 1e-5 * np.abs(right)
        limit = 0.02 if formulas.narrow(fmt_out) else 0.0
        assert apart.mean() <= limit, output_name


def test_layernorm_corrects_a_first_mean_that_is_off():
    op = ops.get("layernorm")
    variant = Variant("fp32", "fp32", "fp32", contract="two-pass")
    held = op.contract(variant)
    values = row_values(op, held)
    first, *rest = formulas.of("layernorm", variant, (8, 9))
    off = replace(first, text=f"{first.text} + 0.5")
    found = formulas.evaluate([off, *rest], {"n": 64.0, **op.scalars(variant, {}), **values})
    flat = {k: v[0] if len(v) == 1 else v for k, v in values.items()}
    right = op.stored_values(EXACT, held, flat)["y"]
    assert np.allclose(found["y"], right, rtol=1e-5, atol=1e-6)


def test_a_missing_cast_would_show():
    op = ops.get("rmsnorm")
    variant = Variant("bf16", "fp32", "bf16")
    held = op.contract(variant)
    values = row_values(op, held)
    lines = [
        formulas.Line(x.name, x.text.replace("cast(t * r, 'bf16')", "t * r"), x.format, x.kind)
        for x in formulas.of("rmsnorm", variant, (8, 9))
    ]
    found = formulas.evaluate(lines, {"n": 64.0, "eps": 1e-6, **values})
    right = op.stored_values(
        EXACT, held, {k: v[0] if len(v) == 1 else v for k, v in values.items()}
    )
    assert (found["y"] != right["y"]).mean() > 0.1


@pytest.mark.parametrize(
    ("fmt", "instructions"),
    [
        ("fp32", ()),
        ("fp16", (((8, 0), "mma.sync.m16n8k16.f32.f16.f16.f32"),)),
        ("e4m3", (((8, 9), "mma.sync.m16n8k32.f32.e4m3.e4m3.f32"),)),
    ],
)
def test_the_attention_formula_gives_the_exact_softmax(fmt, instructions):
    variant = Variant(
        fmt, "fp32", "fp32" if fmt == "fp32" else "bf16", instructions=instructions,
        contract="block-scaled" if fmt == "e4m3" else "",
    )  # fmt: skip
    rng = np.random.default_rng(2)
    q, k, v = (rng.normal(size=(n, 16)) for n in (3, 9, 9))
    bias = rng.normal(size=(3, 9))
    head = attention_formula.Head(0, np.arange(3), q, k, v, bias, np.ones((3, 9), bool))
    out, lse = attention_formula.exact(head)
    lines = formulas.of("attention", variant, (8, 9))
    got = formulas.evaluate(
        lines, {"q": q, "k": k, "v": v, "bias": bias, "scale": 0.25, "power": 0.5}
    )
    # Casts of P and of the result: units of their last places; float32 has none.
    size = 2.0 ** -get(fmt).mantissa_bits if fmt != "fp32" else 1e-6
    assert np.abs(got["out"] - out).max() <= 2 * size * np.abs(v).max()
    assert np.abs(got["lse"][:, 0] - lse).max() <= 4 * size


@pytest.mark.parametrize("accumulator", ["fp32", "fp16"])
def test_the_matmul_formula_is_a_product(accumulator):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(4, 8)), rng.normal(size=(8, 5))
    variant = Variant("fp16", accumulator, "fp32")
    lines = formulas.of("matmul", variant, (8, 9))
    got = formulas.evaluate(lines, {"a": a, "b": b})
    assert np.allclose(got["c"], np.einsum("ik,kj->ij", a, b), rtol=1e-6)
    assert lines[0].format == accumulator


def test_the_split_formula_leaves_out_the_product_of_the_low_parts():
    variant = Variant("fp32", "fp32", "fp32", (8, 0), contract="3xtf32", promotion=8)
    variant = replace(variant, instructions=(((8, 0), "mma.sync.m16n8k8.f32.tf32.tf32.f32"),))
    x = np.array([[1 + 2.0**-12]])  # 2^-12 is below tf32's last bit
    got = formulas.evaluate(formulas.of("matmul", variant, (8, 9)), {"a": x, "b": x})
    assert (got["a_hi"], got["b_lo"]) == (1.0, 2.0**-12)
    assert got["s"] + got["t"] == (1 + 2.0**-12) ** 2 - 2.0**-24


def test_an_operation_without_a_formula_is_named():
    with pytest.raises(UsageError, match="conv has no formula"):
        formulas.of("conv", Variant("fp16", "fp32", "fp16"), (8, 9))


def test_casts_in_a_row_are_counted_along_the_way_of_a_number():
    def counted(contract):
        variant = Variant("bf16", "fp32", "bf16", contract=contract)
        return formulas.reused_casts(formulas.of("rmsnorm", variant, (8, 9)))

    assert counted("fp32-sum") == (1, ("bf16",))  # before the weight
    assert counted("rounded-sum") == (2, ("bf16",))  # and the sum
    assert formulas.reused_casts(
        formulas.of("rmsnorm", Variant("fp32", "fp32", "fp32"), (8, 9))
    ) == (
        0,
        (),
    )
