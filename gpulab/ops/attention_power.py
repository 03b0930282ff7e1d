"""The certificate that the gates of attention fail its standard mutants on the inputs judged.

A mutant that no part of the gate fails makes the verdict INCONCLUSIVE, unless for every query

- it stores the correctly rounded right answer, or
- the query sees one key and the mistake is one of adding keys up: it adds nothing, and what it
  changes passed the bound of the other steps, which is all there is of D then; or
- the mistake costs at most c P |V|, and the declared rounding of P may cost as much: then no bound
  tells them apart that a right kernel keeps;

or it is wrong in its rounding only and the queries are too few for that to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.formats import encode, threads
from gpulab.numerics import power
from gpulab.numerics.power import Certificate
from gpulab.ops.attention_bounds import lost_p, products, rounded_p_bound
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_formula import Head, Mask, softmax
from gpulab.ops.attention_mutants import STANDARD, AttentionMutant, Dims, Stored, same_queries

FEW = 1 << 12
"""Elements below which a mistake of rounding may stay invisible by chance."""

RIGHT = "gives the correctly rounded right answer on every element"
UNCHANGED = "changes nothing on these inputs"
ALONE = "no query sees two keys: it adds nothing up, and keeps within the bound of the other steps"


@dataclass(frozen=True)
class Evidence:
    """Queries of one run, and how outputs for them are judged.

    Args:
        name: family or probe.
        heads: the block.
        right: the correctly rounded answers.
        failed_by: parts of the gate that fail outputs.
    """

    name: str
    heads: Sequence[Head]
    right: Sequence[Stored]
    failed_by: Callable[[Sequence[Stored]], list[str]]


def certify(
    contract: AttentionContract, dims: Dims, evidence: Sequence[Evidence], thorough: bool
) -> tuple[Certificate, ...]:
    """Try every mutant, and an unwritten last query and column on the structure checks.

    Args:
        contract: what is judged.
        dims: of the operation.
        evidence: families and probes of the verdict.
        thorough: on every input; else only until one input has failed the mutant.
    """

    def one(mutant: AttentionMutant) -> Certificate:
        refusal = mutant.refused(contract, dims)
        if refusal is not None:
            return Certificate(mutant.name, "not applicable", reason=refusal)
        attempt = _attempt(contract, dims, mutant)
        return power.certificate(mutant.name, evidence, attempt, thorough)

    work = sum(head.products for each in evidence for head in each.heads)
    found = list(threads.each(one, STANDARD, work, threads.cores()))
    if evidence:
        right = encode(contract.output_row, evidence[0].right[0][0])
        found += [power.unwritten(right, axis) for axis in (0, 1)]
    return tuple(found)


def _attempt(
    contract: AttentionContract, dims: Dims, mutant: AttentionMutant
) -> power.Attempt[Evidence]:
    def attempt(one: Evidence) -> tuple[Sequence[str], str | None]:
        made = [mutant.compute(contract, head, dims) for head in one.heads]
        if all(each is None for each in made):
            return (), UNCHANGED
        outputs = [o if o is not None else r for o, r in zip(made, one.right, strict=True)]
        parts = one.failed_by(outputs)
        return parts, None if parts else _excuse(contract, mutant, one, outputs)

    return attempt


def _excuse(
    contract: AttentionContract, mutant: AttentionMutant, one: Evidence, outputs: Sequence[Stored]
) -> str | None:
    """Why a mutant that passed is no hole of the gate, or None."""
    same = np.concatenate([same_queries(*pair) for pair in zip(outputs, one.right, strict=True)])
    if same.all():
        return RIGHT
    alone = np.concatenate([head.alone for head in one.heads])
    if mutant.adds and (same | alone).all():
        return ALONE
    if mutant.loss is not None:
        hidden = np.concatenate([_hidden(contract, mutant, head) for head in one.heads])
        if (same | hidden | (alone & mutant.adds)).all():
            costs = np.concatenate([mutant.loss(contract, head) for head in one.heads])
            worst = costs[~same].max()
            row = contract.probability_row
            assert row is not None  # what is never rounded hides nothing
            return f"costs at most {worst:.3g} P |V|, rounding P to {row.name} may cost as much"
    if mutant.precision and sum(out.size for out, _ in outputs) < FEW:
        return "too few elements for a mistake of rounding to show"
    return None


def _hidden(contract: AttentionContract, mutant: AttentionMutant, head: Head) -> Mask:
    """Queries in whose every element rounding P may cost what the mistake costs at most (r,)."""
    assert mutant.loss is not None  # asked before
    with np.errstate(invalid="ignore"):
        found = softmax(head.scores)
        s, small = products((found.p, lost_p(contract, found.p, found.total)), head.v, np.abs)
        (squares,) = products((found.p * found.p,), head.v, np.square)
        bound = rounded_p_bound(contract, s, squares) + small
        allowed = bound >= mutant.loss(contract, head)[:, None] * s
    hidden: Mask = allowed.all(axis=1) & ~head.alone
    return hidden
