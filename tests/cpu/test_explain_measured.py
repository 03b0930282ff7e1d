"""What explanations measure: passes, costs and resources; and the command itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from explain_rows import ADA, row

from gpulab import ops, registry
from gpulab.cli import main
from gpulab.explain import cost, names, report, resources, traffic
from gpulab.kernels.matmul import wgmma
from gpulab.lab import evaluate
from gpulab.lab.runner import KernelRunner
from gpulab.ops import formulas
from gpulab.registry import Case
from gpulab.runtime.emulated import EmulatedDevice

# -- what is counted -------------------------------------------------------------------------------


def test_passes_are_how_often_the_source_goes_over_an_array():
    found = traffic.traffic(row("softmax", "plain", "fp16"), ADA)
    assert {p.name: (p.times, p.grown) for p in found.passes} == {"x": (3, 3), "y": (1, 1)}
    assert found.over_least == (2, 2)  # four passes where two arrays are the least
    once = traffic.traffic(row("rmsnorm", "plain", "fp32"), ADA)
    weight = next(p for p in once.passes if p.name == "weight")
    assert (weight.times, weight.grown, weight.constant) == (8, 16, False)  # once a row


def test_loads_and_stores_of_an_array_are_told_apart():
    seen = traffic.ArrayTraffic()
    case = row("softmax", "plain", "fp16")
    dims = {"rows": 2, "cols": 64}
    runner = KernelRunner(case, EmulatedDevice(ADA, observers=(seen,)), dims)
    runner(ops.get("softmax").stored_inputs(case.variant, dims, "normal", 0))
    assert dict(seen.loaded) == {"x": 3 * 2 * 64 * 2}
    assert dict(seen.stored) == {"y": 2 * 64 * 2}


def test_boxes_of_tensor_copies_are_passes_too():
    """A is loaded for each tile across C, B for each tile down it; C is stored once."""
    case = row("matmul", "wgmma", "fp16", output="fp16")
    dims = formulas.sizes("matmul").small
    tile = wgmma.tile(case.variant, dims)
    found = traffic.traffic(case, (9, 0))
    across, down = -(-dims["n"] // tile.block_n), -(-dims["m"] // tile.block_m)
    assert {p.name: p.times for p in found.passes} == {"a": across, "b": down, "c": 1}


def test_the_cost_of_a_stabilisation_is_the_twins_work_over_the_lessons():
    (found,) = cost.costs(row("softmax", "no_max", "fp16"), EmulatedDevice(ADA))
    assert found.mistake == "e^x without the maximum"
    # The twin reads x once more: three times and a store instead of two and a store.
    assert found.ratio("bytes asked of L1") == pytest.approx(4 / 3)
    assert found.ratio("instructions") > 1


def test_an_honest_row_is_told_by_the_lessons_of_its_format_and_contract():
    def told(case):
        return {(w.spec.name, w.variant.format) for w, _ in cost.pairs(case)}

    assert told(row("rmsnorm", "residual", "bf16")) == {
        ("half_sum", "bf16"),
        ("early_rounding", "bf16"),
    }
    assert told(row("rmsnorm", "residual_rounded", "bf16")) == {("half_sum", "bf16")}
    assert told(row("matmul", "simt", "fp16", accumulator="fp32")) == {("simt", "fp16")}
    assert told(row("matmul", "blocked", "fp32")) == set()


TWINS = [
    (spec.op, spec.name)
    for spec in registry.specs()
    if spec.study and spec.name in {s.twin for s in registry.specs(spec.op)}
]


@pytest.mark.parametrize(("op", "name"), TWINS, ids=lambda x: x)
def test_a_twin_passes_the_gates_that_its_lesson_fails(op, name):
    dims = {"rows": 8, "cols": 257}
    (record,) = evaluate.evaluate_all(
        [row(op, name, "fp16")], EmulatedDevice(ADA), dims, measured=False
    )
    assert (record["verdict"], record["reason"]) == ("PASS", None)


def test_a_card_that_is_not_modelled_is_counted_as_the_nearest_below():
    assert report.modelled((8, 7)) == (8, 6)
    assert report.modelled((12, 1)) == (12, 0)
    assert report.modelled((9, 0)) == (9, 0)


def test_on_a_card_costs_are_timed_at_its_sizes(monkeypatch):
    timed = {}

    class Runner:
        def __init__(self, case, device, dims):
            self.case, self.dims = case, dims

    def time_rows(ready, *, seed, runs, warmup, cache):
        for runner, record in ready:
            timed[runner.case.spec.name] = runner.dims
            record["time_ms"] = {"median": 2.0 if runner.case.variant.lesson else 3.0}

    card = EmulatedDevice(ADA)
    card.kind = "cuda"
    monkeypatch.setattr(cost, "KernelRunner", Runner)
    monkeypatch.setattr(cost.measure, "time_rows", time_rows)
    (found,) = cost.costs(row("softmax", "no_max", "fp16"), card)
    assert timed == dict.fromkeys(("no_max", "plain"), formulas.sizes("softmax").timed)
    assert found.ratio("milliseconds") == 1.5


def test_resources_are_those_of_the_compiled_object_or_a_reason():
    fp8 = row("attention", "fp8", "e4m3", contract="block-scaled")
    dims = formulas.sizes("attention").small
    assert resources.resources(fp8, (8, 6), dims).refusal == "needs sm_89"
    plain = row("softmax", "plain", "fp16")
    found = resources.resources(plain, ADA, formulas.sizes("softmax").small)
    assert (found.threads, found.shared_bytes, found.spill_bytes) == (32, 0, 0)
    assert found.blocks == 24  # sm_89 holds so many, and 24 warps of 48 are half of what fits
    assert found.occupancy == 0.5
    assert found.limited_by == ("blocks",)


# -- the command -----------------------------------------------------------------------------------


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    return ended.value.code


def test_the_command_prints_one_json_object_and_nothing_else(capsys):
    code = run(
        "raw/no_rescale", "--op", "softmax", "--format", "fp16", "--capability", "8.9", "--json"
    )
    record = json.loads(capsys.readouterr().out)
    assert (code, record["lesson"], record["capability"]) == (0, True, "8.9")
    (step,) = [r for r in record["risks"] if r["taken"]]
    assert step["risk"] == "wrong weights"
    assert step["places"][0]["file"] == "lessons/softmax_no_rescale.cu"
    assert [r["capability"] for r in record["resources"]][:2] == ["7.5", "8.0"]
    assert record["stabilisations"][0]["ratio"]["instructions"] > 1
    assert {p["name"] for p in record["traffic"]["passes"]} == {"x", "y"}


def test_a_lesson_with_no_mistake_of_arithmetic_says_where_to_look(monkeypatch, capsys):
    monkeypatch.setattr(report.memory, "traffic", lambda case, capability: None)
    monkeypatch.setattr(report.resources, "table", lambda case, dims: ())
    monkeypatch.setattr(report.costs, "costs", lambda case, device: ())
    assert run("raw/mask_zero", "--capability", "8.9") == 0
    assert "gpulab attention --kernel mask_zero" in capsys.readouterr().out


def test_an_ambiguous_name_is_a_usage_error(capsys):
    assert run("raw/online") == 2
    assert "--op logsoftmax --format bf16" in capsys.readouterr().err


def test_a_kernel_that_is_not_what_it_declares_fails(monkeypatch, capsys):
    case = row("crossentropy", "log_of_softmax", "fp32")
    honest = Case(case.spec, replace(case.variant, lesson=False))
    monkeypatch.setattr(names, "find", lambda name, wanted: honest)
    monkeypatch.setattr(report.memory, "traffic", lambda case, capability: None)
    monkeypatch.setattr(report.resources, "table", lambda case, dims: ())
    assert run("raw/log_of_softmax", "--capability", "8.9") == 1
    assert "NOTHING" in capsys.readouterr().out
