"""blocked_tma on a card of capability 9.0: with every tile the bits of blocked, at odd shapes and
over many tiles."""

import numpy as np
import pytest
from runtime_card import CONNECTION

from gpulab import registry
from gpulab.kernels.matmul import blocked_tma
from gpulab.lab.runner import KernelRunner
from gpulab.runtime.cuda import CudaDevice

pytestmark = pytest.mark.gpu

if CONNECTION.card.capability != blocked_tma.HOPPER:
    pytest.skip(f"made for sm_90 alone; this is {CONNECTION.card.name}", allow_module_level=True)

(CASE,) = registry.cases("matmul", kernel="blocked_tma")
(BLOCKED,) = registry.cases("matmul", kernel="blocked")
SHAPES = [  # m, n, k: one element of a tile, tails in each dim, fewer steps than stages, many
    # tiles; some with halved ones last (on 132 multiprocessors), whose right half may have nothing
    (1, 4, 4), (17, 36, 68), (113, 132, 20), (257, 132, 148), (300, 260, 132), (1, 4, 1000),
    (513, 516, 520), (2100, 4368, 272), (1024, 1024, 1024), (2050, 2052, 40), (2050, 1972, 272),
]  # fmt: skip


@pytest.mark.parametrize("tile", blocked_tma.TILES, ids=lambda t: f"{t.block_m}x{t.block_n}")
def test_the_bits_are_those_of_blocked(tile, monkeypatch):
    card = CudaDevice(connection=CONNECTION)
    monkeypatch.setattr(blocked_tma, "TILES", {tile: 1.0})
    found = {}
    for dims in SHAPES:
        m, n, k = dims
        rng = np.random.default_rng(m)
        shapes = {"a": (m, k), "b": (k, n)}
        given = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
        results = []
        for case in (CASE, BLOCKED):
            for poison in (0xA5, 0x5A):
                got = KernelRunner(case, card, {"m": m, "n": n, "k": k})(given, poison=poison)
                assert got.inputs_unchanged
                results.append(got.outputs["c"].view(np.uint32))
        bad = sum(int(np.any(other != results[0])) for other in results[1:])
        if bad:
            found[dims] = bad
    assert found == {}
