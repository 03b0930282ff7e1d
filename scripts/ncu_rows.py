"""The rows of the comparison with ncu: which metrics, what is compared, what is said at the end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from counter_works import Work

_OP = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_BANK = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
_SASS_BANK = "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
SECTORS = tuple(_OP.format("sectors", op) for op in ("ld", "st"))
BANKS = tuple((_SASS_BANK.format(op), _BANK.format(op)) for op in ("ld", "st"))
"""Conflicts told instruction by instruction, and by the hardware's counter, which also counts the
turns that shared accesses lose to other traffic of the data banks (what global loads and cp.async
bring in, matrix instructions). The first are compared where the card tells them."""
NEEDED = (
    *(_OP.format(what, op) for what in ("requests", "sectors") for op in ("ld", "st")),
    *(counter for _, counter in BANKS),
)
"""Without these there is nothing to compare."""
ALONGSIDE = (
    *(sass for sass, _ in BANKS),
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__inst_executed_op_ldgsts.sum",
    _SASS_BANK.format("ldgsts"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__inst_executed.sum",
)
"""Further metrics, recorded where the card has them."""
OWN = {
    BANKS[0][0]: BANKS[0][1],
    BANKS[1][0]: BANKS[1][1],
    _SASS_BANK.format("ldgsts"): "async_copy_bank_conflicts",
    _BANK.format("ldgsts"): "async_copy_bank_conflicts",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "shared_load_wavefronts",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": "shared_store_wavefronts",
    _OP.format("sectors", "ldgsts"): "async_copy_sectors",
    _OP.format("sectors", "ldgsts_cache_access"): "async_copy_sectors",
    _OP.format("sectors", "ldgsts_cache_bypass"): "async_copy_sectors",
    _OP.format("requests", "ldgsts"): "async_copy_requests",
    "smsp__inst_executed.sum": "instructions",
}
"""The counter of ours that comes nearest, where its name is another."""


LOST_TURNS = (
    "not equal: the counter adds the turns that loads lose to the writes of asynchronous copies "
    "(cp.async), which follow from the timing and not from the addresses: kernels that access the "
    "same addresses differ, and so do runs"
)


def explained(metric: str, emulated: dict[str, Any], value: float) -> str:
    """Why ncu's number is another, where it is one that the reason could give; else empty."""
    if metric != BANKS[0][1]:
        return ""
    least = emulated[metric]
    most = least + emulated.get("async_copy_wavefronts", 0)
    return LOST_TURNS if least < value <= most else ""


def compare(
    work: Work, emulated: dict[str, Any], measured: dict[str, float]
) -> list[dict[str, Any]]:
    """Rows of one launch."""
    banks = {sass if sass in measured else counter for sass, counter in BANKS}
    rows = []
    for metric, value in measured.items():
        ours = emulated.get(metric if metric in emulated else OWN.get(metric, ""))
        rows.append(
            {
                "kernel": work.label,
                "lab": work.lab,
                "dims": {k: v for k, v in work.arguments.items() if isinstance(v, int)},
                "metric": metric,
                "compared": metric in banks or metric in SECTORS,
                "emulated": ours,
                "ncu": int(value) if value == int(value) else value,
                "equal": ours == value,
                "explanation": "" if ours == value else explained(metric, emulated, value),
            }
        )
    return rows


def report(rows: list[dict[str, Any]], out: Path, started: float) -> int:
    """Write the table and say what is equal, explained and apart; the exit code."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unequal = [row for row in rows if row["compared"] and not row["equal"]]
    apart = [row for row in unequal if not row["explanation"]]
    known = [row for row in unequal if row["explanation"]]
    beside = [
        row for row in rows if row["metric"] in NEEDED and not row["compared"] and not row["equal"]
    ]
    for word, listed in (("apart", apart), ("explained", known), ("beside", beside)):
        for row in listed:
            numbers = f"{row['emulated']} here, {row['ncu']} by ncu"
            print(f"{word}: {row['kernel']}: {row['metric']}: {numbers}")
    kernels = {row["kernel"] for row in rows if row["lab"]}
    equal = kernels - {row["kernel"] for row in unequal}
    same = sum(row["compared"] and row["equal"] for row in rows)
    print(f"{same} numbers equal, {len(known)} explained, {len(apart)} apart")
    print(f"{len(equal)} of {len(kernels)} kernels of the lab equal in all")
    print(f"wrote {out} in {time.monotonic() - started:.0f} s")
    return 1 if apart or len(equal) < 6 else 0
