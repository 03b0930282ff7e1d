"""From the judgements of all cases to stages: what failed, and whether the evidence decides."""

from __future__ import annotations

from gpulab.check.evidence import STAGE_OF
from gpulab.check.session import Check
from gpulab.numerics.verdict import INCONCLUSIVE_CODES, json_number


def gather(check: Check) -> None:
    """Stages from the judgements of all shapes."""
    for stage in (
        "structure",
        "exact probes",
        "arithmetic",
        "contract",
        "non-finite",
        "repeat",
    ):
        check.result.note(stage, "PASS")
    seen = "" if check.watched is not None else f"writes beside arrays alone: {check.unwatched}"
    check.result.note("faults", "PASS", seen)
    for _, judgement in check.judged:
        for reason in judgement.reasons:
            if reason.code not in INCONCLUSIVE_CODES:
                check.result.note(STAGE_OF[reason.code], "FAIL", reason.text)
    _power(check)
    shown = max(check.judged, key=lambda pair: pair[1].arithmetic_fraction)
    first = shown[1].families[0]
    check.result.facts.update(
        dims=dict(shown[0].dims),
        shapes=[dict(s.dims) for s, _ in check.judged],
        max_abs_err=json_number(first.max_abs_err),
        max_rel_err=json_number(first.max_rel_err),
        storage_err=json_number(first.storage_err),
        contract_gate={
            "fraction": json_number(max(j.contract_fraction for _, j in check.judged)),
            "passed": all(j.contract_passed for _, j in check.judged),
            "text": first.contract_text,
        },
        arithmetic_gate={
            "fraction": json_number(shown[1].arithmetic_fraction),
            "passed": all(j.arithmetic_passed for _, j in check.judged),
            "text": shown[1].arithmetic_text,
        },
    )


def _power(check: Check) -> None:
    """Every mutant that applies anywhere is caught somewhere, or nothing can be told."""
    if check.failing() is not None:
        check.result.note("power", "not run", "it fails: nothing rests on what it would have seen")
        return
    status: dict[str, set[str]] = {}
    for _, judgement in check.judged:
        for one in judgement.power:
            status.setdefault(one.mutant, set()).add(one.status)
    through = [name for name, seen in status.items() if "passes" in seen and "caught" not in seen]
    evidence = [str(r) for _, j in check.judged for r in j.reasons if r.code in ("exact-inputs",)]
    if through and check.options.only is None:
        check.result.note(
            "power",
            "INCONCLUSIVE",
            f"the gates let these mistakes through: {', '.join(through)}",
        )
    elif evidence and all(j.reasons for _, j in check.judged):
        check.result.note("power", "INCONCLUSIVE", evidence[0])
    else:
        caught = sum("caught" in seen for seen in status.values())
        check.result.note("power", "PASS", f"{caught} standard mistakes would have been caught")
