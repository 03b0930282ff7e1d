"""out = softmax(q k^T / sqrt(head_dim) + bias) v; lse."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, VariantLike
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.formulas import Line
from gpulab.ops.formulas.matmul import how
from gpulab.ops.formulas.softmax import POWER

_PLAIN = {"causal": 0, "window": 0, "bias_planes": 0, "mask_planes": 0}
SMALL = {
    "batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 64, "seq_k": 128, "head_dim": 64, **_PLAIN,
}  # fmt: skip
GROWING = ("seq_q", "seq_k")
TIMED = SMALL | {"heads": 16, "kv_heads": 16, "seq_q": 2048, "seq_k": 2048, "head_dim": 128}


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """Attention of one head, fully masked rows and hidden keys left out."""
    contract = AttentionContract.of(variant, capability)
    out, row = contract.output, contract.probability_row
    start: tuple[Line, ...]
    if contract.splits_scale:
        fmt = contract.format
        start = (
            Line("q_", f"cast(q * power, '{fmt}')", fmt, "cast", "scaled by a power of two"),
            Line("z", "dot(q_, transposed(k))", kind="sum", note=how(contract.scores)),
            Line("x", "z * (scale / power) + bias", note="the rest of the scale"),
        )
    elif contract.scaled:
        start = (
            Line("z", "dot(q, transposed(k))", kind="sum", note=how(contract.scores)),
            Line("x", "z * scale + bias", note="with the scales of q and k"),
        )
    else:
        start = (
            Line("q_", "q * scale"),
            Line("z", "dot(q_, transposed(k))", kind="sum", note=how(contract.scores)),
            Line("x", "z + bias"),
        )
    kept = Line("P", "p", kind="exact", note="not rounded")
    if row is not None:
        kept = Line("P", f"cast(p, '{row.name}')", row.name, "cast", "after its sum is taken")
    return (
        *start,
        Line("m", "max(x)", kind="exact"),
        Line("p", "exp(x - m)", note=POWER.replace("d log2", "(x - m) log2")),
        Line("l", "sum(p)", kind="sum"),
        kept,
        Line("w", "dot(P, v)", kind="sum", note=how(contract.sums)),
        Line("out", f"cast(w / l, '{out}')", out, "cast"),
        Line("lse", "m + log(l)"),
    )
