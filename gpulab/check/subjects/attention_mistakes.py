"""Mistakes of attention, each with what it would have stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import Evidence, Suspect
from gpulab.check.subjects import attention_formulas as formulas
from gpulab.check.subjects.attention_formulas import OfHead, View
from gpulab.ops.attention_formula import Floats, visible

TYPED = (16, 32, 64, 80, 96, 128, 256)
"""Values of head_dim that a kernel may have in the stead of the one that it is given."""
TILES = (128, 64, 32, 16, 8, 4, 2, 1)
BILLION = -1e9
Compute = Callable[[], dict[str, Floats]]
Known = tuple[str, str, str, Compute]
"""Slug, text, fix and what the mistake stores."""


def _with(view: View, **changed: NDArray[Any]) -> dict[str, Floats]:
    return view.results(formulas.right, {**view.inputs, **changed})


def _first(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """The first head (axis 1) or batch entry (axis 0) in the place of all."""
    return np.broadcast_to(array.take([0], axis), array.shape)


def _relaid(array: NDArray[Any]) -> NDArray[Any]:
    """(batch, heads, seq, d) memory read as (batch, seq, heads, d)."""
    batch, heads, rows, columns = array.shape
    return array.reshape(batch, rows, heads, columns).transpose(0, 2, 1, 3)


def _laid_out(view: View) -> dict[str, Floats]:
    """All arrays taken as (batch, seq, heads, head_dim)."""
    found = _with(view, **{n: np.ascontiguousarray(_relaid(view.inputs[n])) for n in "qkv"})
    out = found["out"]
    return {**found, "out": out.transpose(0, 2, 1, 3).reshape(out.shape)}


CAUSAL = "key <= query + seq_k - seq_q"
RESCALE = "multiply sum and output by expf(old maximum - new maximum) wherever the maximum grows"
HEADS = "K and V of batch entry b and head h begin at (b * heads + h) * seq_k * head_dim"
SCALE = "score = q.k / sqrt(head_dim), in float"
LSE = "lse = maximum + logf(sum), the natural logarithm"
HIDE = "a hidden key has the score -infinity, a query that sees none out = 0 and lse = -infinity"


def suspects(view: View) -> Iterator[Known]:
    """Slug, text, fix and what each mistake stores, the likeliest first."""
    if view.data.dims["causal"]:
        yield from _of_causality(view)
    yield from _of_heads(view)
    yield from _of_scale(view)
    yield from _of_tiles(view)
    yield from _of_softmax(view)
    yield from _dropped(view)


def _of_causality(view: View) -> Iterator[Known]:
    """Keys that the causal mask shows and should not, or hides wrongly."""
    d, whole = view.data.dims, view.results
    behind = np.arange(d["seq_q"], dtype=np.int64)

    def shown(queries: NDArray[np.int64], seq_q: int = d["seq_q"]) -> OfHead:
        mask = visible({**d, "seq_q": seq_q}, queries)
        return lambda head: formulas.seen(head, mask)

    for away, text in ((1, "one key too many"), (-1, "one key too few")):
        yield ("causal-off-by-one", f"a query sees {text}", CAUSAL,
               partial(whole, shown(behind + away)))  # fmt: skip
    yield ("causal-alignment", "the causal mask begins at the first query and the first key; "
           "it ends at the last query and the last key", CAUSAL,
           partial(whole, shown(behind, d["seq_k"])))  # fmt: skip
    yield ("not-causal", "queries see the keys behind them although causal = 1", CAUSAL,
           partial(whole, formulas.everything))  # fmt: skip
    yield ("masked-average", "a query that sees no key averages all values: its scores are all "
           "the same large negative number", HIDE,
           partial(whole, partial(formulas.hidden, BILLION)))  # fmt: skip
    yield ("mask-zero", "hidden keys have the score 0, which is the weight e^0 = 1", HIDE,
           partial(whole, partial(formulas.hidden, 0.0)))  # fmt: skip


def _of_scale(view: View) -> Iterator[Known]:
    """Scores times another factor."""
    columns = view.data.dims["head_dim"]
    for factor, text in (
        (np.sqrt(columns), "scores are not scaled"),
        (1.0 / np.sqrt(columns), "scores are divided by head_dim, not by its root"),
        (float(columns), "scores are multiplied by sqrt(head_dim)"),
    ):
        if columns > 1:
            compute = partial(view.results, partial(formulas.scaled, factor))
            yield "wrong-scale", text, SCALE, compute
    for typed in TYPED:
        compute = partial(view.results, partial(formulas.scaled, np.sqrt(columns / typed)))
        text = f"scores are divided by sqrt({typed}), whatever head_dim is"
        yield "wrong-scale", text, SCALE, compute


def _of_tiles(view: View) -> Iterator[Known]:
    """Tiles of keys: the last one's tail, and the step from each to the next."""
    keys, whole = view.data.dims["seq_k"], view.results
    for tile in TILES:
        if keys % tile:
            for causal, text in ((True, ""), (False, ", for every query")):
                yield ("tail-unmasked", f"the zeros that fill the last tile of {tile} keys take "
                       f"part{text}: e^0 is 1", "keys from seq_k on have the score -infinity",
                       partial(whole, partial(formulas.tail, tile, causal)))  # fmt: skip
        if tile < keys:
            for rescaled, text in ((False, "sum and output are"), (True, "the output is")):
                yield ("no-rescale", f"{text} never rescaled when the maximum grows (tiles of "
                       f"{tile} keys)", RESCALE,
                       partial(whole, partial(formulas.online, tile, rescaled)))  # fmt: skip


def _of_softmax(view: View) -> Iterator[Known]:
    """Exponentials, their sum, what holds the scores, and the log-sum-exp."""
    whole = view.results
    for of_head in (formulas.no_max, formulas.no_max_guarded):
        yield ("no-max", "exponentials are taken of the scores as they are: large ones overflow, "
               "very negative ones vanish", "subtract the maximum of the row first",
               partial(whole, of_head))  # fmt: skip
    yield ("not-normalised", "the output is not divided by the sum of the exponentials",
           "out = sum of e^(x - max) v / sum of e^(x - max)",
           partial(whole, formulas.not_divided))  # fmt: skip
    for of_head, text in ((formulas.half_scores, "q.k is kept in half and scaled afterwards"),
                          (formulas.half_scaled, "scores are kept in half")):  # fmt: skip
        yield ("scores-in-half", f"{text}: above 2048 half holds every second integer, above "
               "65504 nothing", SCALE, partial(whole, of_head))  # fmt: skip
    for change, text in (
        (lambda found: found.lse / np.log(2.0), "it is a logarithm to base 2"),
        (lambda found: np.log(found.total)[:, 0], "the maximum is not added"),
        (lambda found: found.total[:, 0], "it is the sum, not its logarithm"),
        (lambda found: found.largest[:, 0], "it is the maximum alone"),
    ):
        yield "wrong-lse", text, LSE, partial(whole, partial(formulas.lse, change))


def _of_heads(view: View) -> Iterator[Known]:
    """Arrays of another head, batch entry or layout."""
    d, at = view.data.dims, view.inputs
    for axis, name, what in ((1, "heads", "head"), (0, "batch", "batch entry")):
        if d[name] == 1:
            continue
        for which in (("k", "v"), ("k",), ("v",), ("q",)):
            arrays = {n: _first(at[n], axis) for n in which}
            yield ("heads-mixed", f"every {what} reads {' and '.join(which).upper()} of the first "
                   f"{what}", HEADS, partial(_with, view, **arrays))  # fmt: skip
        arrays = {n: np.roll(at[n], -1, axis) for n in "kv"}
        yield ("heads-mixed", f"every {what} reads K and V of the next {what}", HEADS,
               partial(_with, view, **arrays))  # fmt: skip
    if d["heads"] > 1:
        yield ("wrong-layout", "the arrays are taken as (batch, seq, heads, head_dim)",
               "they are (batch, heads, seq, head_dim): a head's rows follow each other",
               partial(_laid_out, view))  # fmt: skip


def _dropped(view: View) -> Iterator[Known]:
    """Keys, or columns of the scores, that a loop does not reach."""
    keys, columns = view.data.dims["seq_k"], view.data.dims["head_dim"]
    fix = "check where the loop ends: its last, incomplete step counts too"
    index = np.arange(keys)
    parts = [(keys - 1, "the last"), (-1, "the first")]
    for tile in TILES[:-1]:
        if tile < keys:
            parts += [(tile, ""), *([(keys // tile * tile, "")] if keys % tile else [])]
    for kept, missing in parts:
        use = index > 0 if kept < 0 else index < kept
        text = f"{missing} key is missing" if missing else f"only the first {kept} keys are seen"
        yield ("dropped-terms", text, fix,
               partial(view.results, partial(formulas.only, use)))  # fmt: skip
    for tile in TILES[:-1] if view.data.dims["causal"] else ():
        yield ("dropped-terms", f"a query sees whole tiles of {tile} keys only", fix,
               partial(view.results, partial(formulas.whole_tiles, tile)))  # fmt: skip
    for tile in TILES[:-1]:
        for kept in dict.fromkeys((columns // tile * tile, tile)):
            if 0 < kept < columns:
                yield ("dropped-terms", f"scores sum only the first {kept} of {columns} columns",
                       fix, partial(view.results, partial(formulas.columns, kept)))  # fmt: skip


def _output(compute: Compute, name: str) -> Floats:
    return compute()[name]


def known(view: View, e: Evidence) -> Diagnosis | None:
    """The first mistake whose values the result has."""
    with np.errstate(all="ignore"):
        for slug, text, fix, compute in suspects(view):
            told = Suspect(slug, text, fix, partial(_output, compute, e.expected.name)).explains(e)
            if told is not None:
                return told
    return None
