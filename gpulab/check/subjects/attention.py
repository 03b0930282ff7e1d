"""Attention as the checker knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check import ptx
from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import Evidence, constant, misplaced, scaled, zeros
from gpulab.check.subject import Arrays, Beyond, Expected, Inputs, Seen, Setting, Subject
from gpulab.check.subjects import attention_arithmetic, attention_beyond, attention_mistakes
from gpulab.check.subjects import attention_witness as witness
from gpulab.check.subjects.attention_formulas import View
from gpulab.check.subjects.matmul import LEAST_BITS
from gpulab.check.subjects.rows import hidden_special
from gpulab.formats import Format, get
from gpulab.numerics import gates
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Capability
from gpulab.numerics.rounding import through
from gpulab.ops.attention import ATTENTION
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_families import FAMILIES, get_family
from gpulab.ops.attention_formula import Floats, answer
from gpulab.ops.attention_probes import probes
from gpulab.ops.base import Runner
from gpulab.registry import Variant


def _data(setting: Setting) -> Data:
    """Inputs and answers of a case."""
    contract = ATTENTION.contract(setting.variant, setting.capability, setting.atomics)
    dims = {name: int(value) for name, value in setting.dims.items()}
    return Data(contract, dims, setting.seed, Cache())


def _view(e: Evidence) -> View:
    return View(_data(e.setting), e.inputs)


def _known(e: Evidence) -> Diagnosis | None:
    return attention_mistakes.known(_view(e), e)


def _masked(e: Evidence) -> Diagnosis | None:
    return attention_arithmetic.masked(_view(e), e)


def _rounded(e: Evidence) -> Diagnosis | None:
    return attention_arithmetic.rounded(_view(e), e)


def _narrow(e: Evidence) -> Diagnosis | None:
    return attention_arithmetic.narrow(_view(e), e)


class Attention(Subject):
    """out = softmax(Q K^T / sqrt(head_dim)) V, and the log-sum-exp of every query."""

    guard = "query < seq_q, key < seq_k, column < head_dim: threads beyond must not touch them"
    store = "out[(head * seq_q + query) * head_dim + column] and lse[head * seq_q + query]"
    mistakes = (hidden_special, zeros, constant, _known, misplaced, scaled, _rounded, _narrow)
    special = (_masked, _known)
    along = ("heads", "kv_heads")
    subtle = (_rounded, _narrow)

    def row(
        self,
        variant: Variant,
        instructions: Sequence[str],
        capability: Capability,
        dims: Mapping[str, int],
    ) -> Variant:
        """See ``Subject``: of the instructions used, the one that may be off most."""
        used = ptx.loosest(instructions, variant.format, "fp32", capability, dims["seq_k"])
        return replace(variant, instructions=((capability, used),)) if used else variant

    def inputs(self, setting: Setting, where: str) -> Arrays | None:
        """See ``Subject``."""
        data = _data(setting)
        if where in FAMILIES:
            return data.family(get_family(where)).stored
        probe = next((p for p in probes("full") if p.name == where), None)
        made = None if probe is None else probe.inputs(data)
        return None if made is None else made.stored

    def beyond(self, setting: Setting) -> Sequence[Beyond]:
        """See ``Subject``."""
        return tuple(attention_beyond.cases(_data(setting)))

    def expected(self, setting: Setting, inputs: Inputs) -> tuple[Expected, ...]:
        """See ``Subject``."""
        data = _data(setting)
        d = data.dims
        answers = [answer(data.contract, head) for head in View(data, inputs).heads()]
        rows = (d["batch"], d["heads"], d["seq_q"])

        def whole(parts: list[NDArray[Any]], *shape: int) -> Floats:
            return np.concatenate(parts).reshape(*rows, *shape)

        return (
            _expected(
                "out",
                data.contract.output_row,
                whole([a.out for a in answers], d["head_dim"]),
                whole([a.d_out for a in answers], d["head_dim"]),
            ),
            _expected(
                "lse",
                get("fp32"),
                whole([a.lse for a in answers]),
                whole([a.d_lse for a in answers]),
            ),
        )

    def moving(self, setting: Setting) -> Mapping[str, int]:
        """See ``Subject``: the heads."""
        return dict.fromkeys(("q", "k", "v", "out", "lse"), 1)

    def witness(self, setting: Setting, at: Callable[[Mapping[str, int]], Runner]) -> Seen | None:
        """See ``Subject``: the widths of both running sums."""
        if setting.variant.format != witness.FORMAT or setting.variant.output != witness.FORMAT:
            return None
        seen = witness.look(at(witness.DIMS))
        facts = {"bits": seen.values, "weight_bits": seen.weights}
        wrong = min(seen.values, seen.weights) < LEAST_BITS
        return Seen(seen.text, witness.against(seen), wrong, facts)


def _expected(name: str, row: Format, right: Floats, d: Floats) -> Expected:
    return Expected(name, row.name, right, d, through(row, right), partial(_ok, right, d, row))


def _ok(right: Floats, d: Floats, row: Format, got: Floats) -> NDArray[np.bool_]:
    return gates.interval(got, right, d, row).ok


SUBJECT = Attention()
