"""How Numba's row kernels share rows: rings, clusters, turns, held parameters, and a rest."""

from dataclasses import replace

import numpy as np
import pytest
from row_runs import case, run

from gpulab.kernels import numba_layout
from gpulab.kernels.row_shape import Kept, Streamed

HOPPER = (9, 0)
ROWS = 5
RNG = np.random.default_rng(9)
REAL = numba_layout.chosen

ANY = [
    # A row is two batches of each of two blocks, the ring three: the next row lies elsewhere in it.
    ("softmax", "online", 3996, Streamed(64, 8, 3, blocks=2, cluster=2)),
    # More warps a row than a warp has lanes; a batch a row. (In `make test` rows have as many warps
    # in tests/emulated/test_numba_behind.py.)
    pytest.param(
        "rmsnorm", "row", 8192, Streamed(512, 4, 1, blocks=1, cluster=4), marks=pytest.mark.whole
    ),
    # Two arrays side by side in the ring, and less than a batch.
    ("rmsnorm", "residual", 504, Streamed(64, 2, 3, blocks=2)),
    ("layernorm", "two_pass", 2048, Streamed(64, 8, 5, blocks=1, holds=True)),
    # What a block cannot keep is read again.
    ("rmsnorm", "row", 1100, Kept(64, 0, 4)),
]


def expected(op, x, weight, bias):
    if op == "softmax":
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)
    if op == "layernorm":
        left = x - x.mean(1, keepdims=True)
        return left / np.sqrt((left**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * weight


@pytest.mark.parametrize(("op", "name", "cols", "shape"), ANY)
def test_rows_that_follow_each_other_in_a_block(monkeypatch, op, name, cols, shape):
    """Under the race detector: two blocks (or clusters) for five rows, and one a row."""
    monkeypatch.setattr(numba_layout, "chosen", lambda table, *rest: REAL((shape,), *rest))
    one = case(op, name, "fp32", "numba")
    x = np.float32(RNG.standard_normal((ROWS, cols)))
    if op != "softmax":
        x[3] *= np.float32(1e25)  # its squares overflow: it is gone over once more
    weight, bias = (np.float32(RNG.standard_normal(cols)) for _ in range(2))
    given = {"x": x, "weight": weight, "bias": bias, "residual": x[::-1]}
    given = {p.name: given[p.name] for p in one.spec.params(one.variant) if p.role == "in"}
    apart = run(one, HOPPER, **given)
    total = x + x[::-1] if "residual" in given else x
    wanted = expected(op, np.float64(total), weight, bias)
    np.testing.assert_allclose(apart["y"], wanted, rtol=1e-4, atol=1e-6)
    if "residual" in given:
        np.testing.assert_array_equal(apart["residual_out"], total)
    if shape.turns:
        plan = one.spec.plan(one.variant, HOPPER, {"rows": ROWS, "cols": cols})
        few = replace(plan, grid=(2 * plan.cluster, 1, 1))
        one = replace(one, spec=replace(one.spec, plan=lambda *_: few))
        turns = run(one, HOPPER, sanitize=True, **given)
        for key, array in apart.items():
            np.testing.assert_array_equal(turns[key], array)


@pytest.mark.parametrize("capability", [(7, 5), (8, 9), (9, 0)], ids=str)
@pytest.mark.parametrize("table", ["PLAIN", "ONLINE", "MOMENTS", "TWO_ARRAYS"])
def test_what_is_kept_of_a_row_is_all_of_it_or_there_is_a_rest(table, capability):
    one = case("softmax", "online", "bf16", "numba").variant
    arrays = 2 if table == "TWO_ARRAYS" else 1
    for cols in (1, 257, 4096, 40000, 131072, 262144, 300_000, 2_000_000):
        rows = (getattr(numba_layout, table), one, capability, {"rows": 1, "cols": cols})
        layout, shape, row = REAL(*rows, arrays, True)
        of_row = layout.step * layout.keep
        assert (layout.fit == "kBeyond") == (row.count > of_row)
        assert (layout.fit == "kWhole") == (row.count == of_row)
        assert layout.ring >= layout.keep
        assert layout.ring % layout.batch == 0
        assert shape.shared_bytes(row) == layout.ring * layout.threads * row.kept_bytes
