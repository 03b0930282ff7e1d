"""Classes of opcodes, and what matrix instructions multiply."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import update_counters

from gpulab.emulator.opclass import CLASSES, classify, matrix_product


@pytest.mark.parametrize(
    ("opcode", "product"),
    [
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", (16 * 8 * 32, "e4m3.e5m2")),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", (4096, "s8")),
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", (64 * 256 * 16 // 4, "bf16")),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", (4096, "f16")),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", None),
        ("wgmma.fence.sync.aligned", None),
        ("fma.rn.f32", None),
    ],
)
def test_matrix_product(opcode: str, product: tuple[int, str] | None) -> None:
    assert matrix_product(opcode) == product


@pytest.mark.parametrize(
    ("opcode", "wanted"),
    [
        ("ld.global.nc.v4.f32", "global"),
        ("ld.f32", "global"),
        ("atom.shared.add.u32", "shared"),
        ("ld.shared::cta.u32", "shared"),
        ("st.local.f32", "local"),
        ("ld.param.u64", "parameter"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "shared"),
        ("cp.async.cg.shared.global", "async copy"),
        ("fma.rn.f16x2", "half"),
        ("add.rn.bf16x2", "half"),
        ("fma.rn.ftz.f32", "fp32"),
        ("mul.rn.f64", "fp64"),
        ("div.rn.f32", "special"),
        ("div.s32", "integer"),
        ("div.rn.f64", "fp64"),
        ("ex2.approx.ftz.f32", "special"),
        ("cvt.rn.f16.f32", "convert"),
        ("mad.lo.s32", "integer"),
        ("shl.b32", "integer"),
        ("setp.ge.s32", "compare"),
        ("and.pred", "compare"),
        ("selp.f32", "compare"),
        ("mov.u32", "move"),
        ("cvta.to.global.u64", "move"),
        ("shfl.sync.bfly.b32", "warp"),
        ("bar.sync", "barrier"),
        ("bra.uni", "control"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "tensor"),
    ],
)
def test_classes(opcode: str, wanted: str) -> None:
    assert classify(opcode) == wanted
    assert wanted in CLASSES


def test_the_page_lists_every_counter() -> None:
    text = update_counters.PAGE.read_text()
    assert update_counters.page(text) == text, "run scripts/update_counters.py"
