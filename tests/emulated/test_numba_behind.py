"""Numba's rows that are summed while the one before is written: by few threads, the code of long
rows."""

from dataclasses import replace

import numpy as np
import pytest
from row_runs import case, run

from gpulab.kernels import numba_layout
from gpulab.kernels.numba_layout import Trail
from gpulab.registry import LaunchPlan

HOPPER = (9, 0)
ROWS = 8
REAL = numba_layout.chosen
SHAPES = {
    # More rows than places of their meetings; the ring holds two rows and a half.
    "whole": ("bf16", Trail(64, 8, 5, blocks=1, cluster=2), 8192),
    # More warps a row than a warp has lanes.
    "wide": ("fp32", Trail(512, 1, 3, blocks=1, cluster=4), 8192),
    # The same, and the last threads have no pack.
    "shorter": ("fp32", Trail(512, 1, 3, blocks=1, cluster=4), 4 * 1561),
}
NAN, INF, HUGE, OFFSET, SAME, AGAIN = 1, 2, 3, 4, 5, 6
"""Rows with a NaN; an infinity; squares that overflow, as those of AGAIN; far from 0; of one
value."""


WHOLE = ("wide",)
"""Compiled in `make test-whole` alone."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(s, marks=[pytest.mark.whole] * (s in WHOLE)) for s in SHAPES],
)
def ran(request):
    """x, weight, bias, and y of a function (grid in clusters, options) -> y."""
    fmt, shape, cols = SHAPES[request.param]
    one = case("layernorm", "two_pass", fmt, "numba")
    rng = np.random.default_rng(11)
    x = rng.standard_normal((ROWS, cols)).astype(np.float32)
    x[NAN, 7], x[INF, 900], x[SAME] = np.nan, np.inf, 3.0
    x[OFFSET] += 1e4 if fmt == "fp32" else 50.0
    x[HUGE] *= np.float32(3e37)
    x[AGAIN] *= np.float32(1e30)
    weight, bias = (np.float32(rng.standard_normal(cols)) for _ in range(2))
    if fmt == "bf16":
        x, weight, bias = (
            np.uint32(a.view(np.uint32) & 0xFFFF0000).view(np.float32) for a in (x, weight, bias)
        )

    def result(clusters, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(numba_layout, "chosen", lambda table, *rest: REAL((shape,), *rest))
            plan: LaunchPlan = one.spec.plan(one.variant, HOPPER, {"rows": ROWS, "cols": cols})
            few = replace(plan, grid=(clusters * plan.cluster, 1, 1))
            changed = replace(one, spec=replace(one.spec, plan=lambda *_: few))
            return run(changed, HOPPER, x=x, weight=weight, bias=bias, **options)["y"]

    return fmt, np.float64(x), weight, bias, result


def test_rows_behind_each_other_are_those_of_a_cluster_a_row(ran):
    """Bit by bit, and under the race detector; also where the rows are fewer than the clusters."""
    *_, result = ran
    alone = result(ROWS)
    np.testing.assert_array_equal(result(1, sanitize=True), alone)
    np.testing.assert_array_equal(result(3), alone)
    np.testing.assert_array_equal(result(ROWS + 2), alone)


def test_rows_are_normalised(ran):
    fmt, x, weight, bias, result = ran
    y = result(2)
    assert np.isnan(y[[NAN, INF]]).all()
    assert np.isfinite(np.delete(y, [NAN, INF], axis=0)).all()
    np.testing.assert_array_equal(y[SAME], bias)
    rows = [row for row in range(ROWS) if row not in (NAN, INF, SAME)]
    left = x[rows] - x[rows].mean(1, keepdims=True)
    wanted = left / np.sqrt((left**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    step = 2.0**-8 if fmt == "bf16" else 2.0**-20
    assert (np.abs(y[rows] - wanted) <= step * np.abs(wanted) + 1e-5).all()
