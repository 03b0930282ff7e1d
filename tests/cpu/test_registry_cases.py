"""Which rows a filter gives, and which a capability, a device and a study leave out."""

from dataclasses import replace

import pytest

from gpulab import registry
from gpulab.errors import UsageError
from gpulab.registry import Case, KernelSpec


def names(**filters):
    return [
        (c.spec.backend, c.spec.name, c.variant.format) for c in registry.cases("matmul", **filters)
    ]


def test_filters_take_one_name_or_several():
    one, other = names(kernel="mma"), names(kernel="cublas")
    assert one
    assert other
    assert names(kernel="mma,cublas") == one + other
    assert {f for *_, f in names(format="bf16,e4m3")} == {"bf16", "e4m3"}
    assert names(kernel="simt", backend="raw,numba") == names(kernel="simt")
    assert names(kernel="mma,cublas", format="fp16", backend="library") == names(
        kernel="cublas", format="fp16"
    )


def test_of_all_operations_a_name_of_any_of_them_counts():
    assert {c.spec.op for c in registry.cases(None, backend="library")} == {"matmul"}
    found = [(c.spec.op, c.spec.name) for c in registry.cases(None, kernel="row,blocked")]
    assert set(found) == {("matmul", "blocked"), ("rmsnorm", "row")}
    assert found == sorted(found)
    with pytest.raises(UsageError, match="the lab has no kernel 'nope'"):
        list(registry.cases(None, kernel="row,nope"))


@pytest.mark.parametrize("filters", [{"kernel": "mma,mmma"}, {"format": "bf16,"}, {"backend": "c"}])
def test_an_unknown_name_among_several_is_refused(filters):
    with pytest.raises(UsageError, match="matmul has no") as caught:
        names(**filters)
    assert "choose one of" in caught.value.fix


@pytest.fixture
def study(monkeypatch):
    known = registry.specs("matmul")
    made = replace(known[0], name="step", study=True)
    monkeypatch.setattr(registry, "specs", lambda op: [*known, made])


def test_a_study_is_found_by_name_or_when_asked_for(study):
    assert not [n for n in names() if n[1] == "step"]
    assert [n for n in names(studies=True) if n[1] == "step"]
    assert {n[1] for n in names(kernel="step")} == {"step"}


def case(**fields):
    spec = registry.specs("matmul")[0]
    return Case(replace(spec, **fields), spec.variants[0])


def test_a_kernel_of_one_capability_runs_on_no_newer_one():
    only = case(only_capability=(9, 0))
    assert only.refusal((9, 0), "cuda") is None
    assert "sm_90" in (only.refusal((10, 0), "cuda") or "")
    assert case().refusal((10, 0), "cuda") is None


def test_a_declaration_for_a_card_is_made_where_its_size_is_known():
    def for_card(spec: KernelSpec, multiprocessors: int) -> KernelSpec:
        return replace(spec, idea=f"for {multiprocessors}")

    sized = case(for_card=for_card)
    assert sized.on(None) is sized
    assert sized.on(78).spec.idea == "for 78"
    assert case().on(78).spec.idea == registry.specs("matmul")[0].idea
