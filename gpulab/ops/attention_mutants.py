"""The standard mutants of attention, and the certificate that the gate fails them.

A mutant is what a kernel with one mistake stores for some queries of the very inputs that are
judged. One that no part of the gate fails makes the verdict INCONCLUSIVE, unless it stores the
correctly rounded right answer everywhere, or it is wrong in its rounding only and the queries are
too few for that to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpulab.formats import encode, get
from gpulab.numerics import structure
from gpulab.numerics.power import Certificate
from gpulab.numerics.rounding import next_lower, through, to_significand
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_formula import Floats, Head, exact, softmax, visible
from gpulab.ops.attention_simulate import Steps, f32, simulate

Dims = dict[str, int]
Stored = tuple[Floats, Floats]
"""Out (r, d) as stored and the log-sum-exp (r,)."""
Compute = Callable[[AttentionContract, Head, Dims], Stored | None]
"""What is stored, or None where the mistake changes nothing by construction."""
Refused = Callable[[AttentionContract, Dims], str | None]

SCALE_ERROR = 0.999
FEW = 1 << 12
"""Elements below which a mistake of rounding may stay invisible by chance."""
TILE = 32
"""Keys a tile of the mutants that work by tiles."""


@dataclass(frozen=True)
class AttentionMutant:
    """One mistake.

    Args:
        name: as in records.
        about: the mistake in one phrase.
        compute: what it stores.
        precision: wrong only in how it rounds or overflows.
        refused: why it changes nothing by construction, or None.
    """

    name: str
    about: str
    compute: Compute
    precision: bool = False
    refused: Refused = lambda contract, dims: None


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


def stored(contract: AttentionContract, out: Floats, lse: Floats) -> Stored:
    """Values as a kernel stores them."""
    return through(contract.output_row, out), f32(lse)


def _exactly(contract: AttentionContract, head: Head) -> Stored:
    with np.errstate(all="ignore"):
        return stored(contract, *exact(head))


def _from_scores(contract: AttentionContract, head: Head, x: Floats) -> Stored:
    with np.errstate(all="ignore"):
        found = softmax(x)
        return stored(contract, found.p @ head.v, found.lse)


def _zeros(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = _exactly(contract, head)
    return np.zeros_like(out), lse


def _constant(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = exact(head)
    with np.errstate(all="ignore"):
        return stored(contract, np.full_like(out, np.nanmean(out)), lse)


def _dropped(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    seen = head.seen.copy()
    last = seen.shape[1] - 1 - seen[:, ::-1].argmax(axis=1)
    seen[np.arange(len(seen)), last] = False
    return _exactly(contract, replace(head, seen=seen))


def _flipped(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = _exactly(contract, head)
    out = out.copy()
    at = np.argsort(np.abs(out), axis=None)[out.size // 2 + (out.size > 1) * (out.size // 4)]
    out.flat[at] = -out.flat[at]
    return out, lse


def _scaled(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = exact(head)
    return stored(contract, SCALE_ERROR * out, lse)


def _no_max(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    with np.errstate(all="ignore"):
        e = f32(np.exp(head.scores))
        total = f32(e.sum(axis=1, keepdims=True))
        out = np.where(total == 0, 0.0, (e @ head.v) / total)
        return stored(contract, out, np.log(total)[:, 0])


def _no_rescale(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    with np.errstate(all="ignore"):
        x = head.scores
        tiles = np.arange(0, x.shape[1], TILE)
        largest = np.maximum.accumulate(np.maximum.reduceat(x, tiles, axis=1), axis=1)
        base = np.repeat(largest, TILE, axis=1)[:, : x.shape[1]]
        if ((base == base[:, -1:]) | np.isneginf(x)).all():
            return None
        e = np.exp(x - np.where(np.isneginf(base), 0.0, base))
        total = e.sum(axis=1, keepdims=True)
        out = (e @ head.v) / np.where(total == 0, 1.0, total)
        lse = base[:, -1] + np.log(total)[:, 0]
        return stored(contract, out, lse)


def _mask_zero(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    if head.seen.all():
        return None
    return _from_scores(contract, head, np.where(head.seen, head.scores, 0.0))


def _off_by_one(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    ahead = visible(dims, head.queries + 1) | visible(dims, head.queries)
    hidden_by_mask = visible(dims, head.queries) & ~head.seen
    seen = ahead & ~hidden_by_mask
    return None if (seen == head.seen).all() else _exactly(contract, replace(head, seen=seen))


def _tail(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    """Zero keys up to a whole tile take part where the last key does."""
    if not head.seen[:, -1].any():
        return None
    missing = -dims["seq_k"] % TILE
    extra = np.where(head.seen[:, -1:], 0.0, -np.inf) * np.ones((1, missing))
    x = np.concatenate([head.scores, extra], axis=1)
    v = np.concatenate([head.v, np.zeros((missing, head.v.shape[1]))])
    with np.errstate(all="ignore"):
        found = softmax(x)
        return stored(contract, found.p @ v, found.lse)


def _unscaled(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    return _exactly(contract, replace(head, q=head.q / head.scale))


def _lower(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    bits = next_lower(get(contract.format)).mantissa_bits + 1
    with np.errstate(all="ignore"):
        q, k, v = (to_significand(x, bits) for x in (head.q, head.k, head.v))
    return _exactly(contract, replace(head, q=q, k=k, v=v))


def _base2(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = exact(head)
    return stored(contract, out, lse / np.log(2))


def _stepwise(steps: Steps) -> Compute:
    def compute(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
        declared, changed = simulate(contract, head), simulate(contract, head, steps)
        return None if _same([declared], [changed]) else changed

    return compute


def _wider_p(contract: AttentionContract, dims: Dims) -> str | None:
    row = contract.probability_row
    if row is not None and row.mantissa_bits <= get("bf16").mantissa_bits:
        return f"the contract rounds P to {row.name}"
    return None


def _is_causal(contract: AttentionContract, dims: Dims) -> str | None:
    if not dims["causal"]:
        return "not causal"
    return "every key is seen" if dims["seq_k"] == 1 == dims["seq_q"] else None


def _has_tail(contract: AttentionContract, dims: Dims) -> str | None:
    return f"whole tiles of {TILE} keys" if dims["seq_k"] % TILE == 0 else None


STANDARD = (
    AttentionMutant("zeros", "writes zeros", _zeros),
    AttentionMutant("constant_mean", "writes the mean everywhere", _constant),
    AttentionMutant("dropped_key", "the last key of every query is missing", _dropped),
    AttentionMutant("sign_flip", "one element has the wrong sign", _flipped),
    AttentionMutant("scaled_0.999", "every element times 0.999", _scaled, True),
    AttentionMutant("no_max", "exponentials without the maximum", _no_max, True),
    AttentionMutant("no_rescale", "online softmax that is never rescaled", _no_rescale, True),
    AttentionMutant("mask_zero", "hidden keys have the score 0", _mask_zero),
    AttentionMutant(
        "causal_off_by_one", "a query sees one key too many", _off_by_one, refused=_is_causal
    ),
    AttentionMutant("tail_unmasked", "zero keys fill the last tile", _tail, refused=_has_tail),
    AttentionMutant("unscaled", "scores without 1 / sqrt(head_dim)", _unscaled),
    AttentionMutant(
        "bf16_exponentials",
        "exponentials in bf16",
        _stepwise(Steps(exponential="bf16")),
        True,
        _wider_p,
    ),
    AttentionMutant("fp16_sums", "sums in half", _stepwise(Steps(sums="fp16")), True),
    AttentionMutant("bf16_sums", "sums in bf16", _stepwise(Steps(sums="bf16")), True),
    AttentionMutant("lower_inputs", "inputs in the next lower format", _lower, True),
    AttentionMutant("lse_base_2", "the log-sum-exp to base 2", _base2),
)


@dataclass
class _Tally:
    caught: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


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
    found = [_certificate(contract, dims, evidence, m, thorough) for m in STANDARD]
    if evidence:
        found += [_unwritten(contract, evidence[0].right[0][0], axis) for axis in (0, 1)]
    return tuple(found)


def _certificate(
    contract: AttentionContract,
    dims: Dims,
    evidence: Sequence[Evidence],
    mutant: AttentionMutant,
    thorough: bool,
) -> Certificate:
    tally = _Tally()
    refusal = mutant.refused(contract, dims)
    if refusal is not None:
        return Certificate(mutant.name, "not applicable", reason=refusal)
    for one in evidence:
        if tally.caught and not thorough:
            break
        made = [mutant.compute(contract, head, dims) for head in one.heads]
        if all(each is None for each in made):
            tally.refusals.append("changes nothing on these inputs")
            continue
        outputs = [o if o is not None else r for o, r in zip(made, one.right, strict=True)]
        parts = one.failed_by(outputs)
        if parts:
            tally.caught += [f"{one.name}/{part}" for part in parts]
        elif _same(outputs, one.right):
            tally.refusals.append("gives the correctly rounded right answer on every element")
        elif mutant.precision and sum(o.size for o, _ in outputs) < FEW:
            tally.refusals.append("too few elements for a mistake of rounding to show")
        else:
            tally.missed.append(one.name)
    if tally.caught:
        return Certificate(mutant.name, "caught", tuple(tally.caught), tuple(tally.missed))
    if tally.missed or not tally.refusals:
        return Certificate(mutant.name, "passes", (), tuple(tally.missed))
    return Certificate(mutant.name, "not applicable", reason=tally.refusals[0])


def _same(outputs: Sequence[Stored], right: Sequence[Stored]) -> bool:
    return all(
        np.array_equal(mine, wanted, equal_nan=True)
        for got, want in zip(outputs, right, strict=True)
        for mine, wanted in zip(got, want, strict=True)
    )


def _unwritten(contract: AttentionContract, out: Floats, axis: int) -> Certificate:
    """The last query or column left as it was before the launch, in both colours."""
    name = "row_unwritten" if axis == 0 else "column_unwritten"
    right = encode(contract.output_row, out)
    runs = []
    for poison in structure.POISONS:
        run = right.copy()
        last = run[-1:] if axis == 0 else run[:, -1:]
        last[...] = np.frombuffer(bytes([poison]) * run.dtype.itemsize, run.dtype)[0]
        runs.append(run)
    if structure.check_written(runs[0], runs[1]) is None:
        return Certificate(name, "passes", (), ("poison",))
    return Certificate(name, "caught", ("structure/unwritten",))
