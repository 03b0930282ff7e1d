"""Shapes, types, chaining, errors and statuses of the tensor-core library."""

import numpy as np
import pytest
from golden_data import FORMS
from tensorcore_cases import ADA, CASES, FP8_32, FP16, H100, RTX, WGMMA_8, encoded, seeded

from gpulab.errors import UsageError
from gpulab.formats import FORMATS
from gpulab.numerics import tensorcore
from gpulab.numerics.tensorcore import CAPABILITIES, mma, mma_batch, mma_block_scaled, model


def product(rng, w, m, n, k):
    a = encoded(rng.standard_normal((*w, m, k)), "f16")
    b = encoded(rng.standard_normal((*w, k, n)), "f16")
    return a, b, rng.standard_normal((*w, m, n)).astype(np.float32).view(np.uint32)


def test_leading_axes_broadcast_and_any_size_is_cut_the_same_way(monkeypatch):
    rng = seeded("shapes")
    name = FP16[ADA]
    a, b, c = product(rng, (2, 3), 19, 5, 48)
    whole = mma(a, b, c, name, ADA)
    for i, j in np.ndindex(2, 3):
        assert (mma(a[i, j], b[i, j], c[i, j], name, ADA) == whole[i, j]).all()
    shared = mma(a, b[0, 0], c[0], name, ADA)
    assert (shared[1, 2] == mma(a[1, 2], b[0, 0], c[0, 2], name, ADA)).all()
    assert (mma_batch(a[0], b[0], c[0], name, ADA) == whole[0]).all()
    warps_last = [
        np.ascontiguousarray(x[0].transpose(1, 2, 0)).transpose(2, 0, 1) for x in (a, b, c)
    ]
    assert (mma_batch(*warps_last, name, ADA) == whole[0]).all()
    monkeypatch.setattr(tensorcore, "PASS", 24)  # many bands of rows, one warp a pass
    monkeypatch.setattr(tensorcore, "_BATCH", 1)
    assert (mma(a, b, c, name, ADA) == whole).all()


def test_longer_k_chains_instructions():
    rng = seeded("chain")
    for name, k in ((FP16[ADA], 16), (FP16[H100], 16), (WGMMA_8, 32), (FP8_32, 32)):
        capability = ADA if name == FP16[ADA] else H100
        ptx = model(name, capability).a_type
        a = encoded(rng.standard_normal((7, 3 * k)), ptx)
        b = encoded(rng.standard_normal((3 * k, 7)), ptx)
        d = c = rng.standard_normal((7, 7)).astype(np.float32).view(np.uint32)
        for s in range(0, 3 * k, k):
            d = mma(a[:, s : s + k], b[s : s + k], d, name, capability)
        assert (mma(a, b, c, name, capability) == d).all()


def test_arrays_of_the_storage_type_are_taken_as_bits():
    rng = seeded("bits")
    a, b, c = product(rng, (), 4, 4, 16)
    want = mma(a, b, c, FP16[ADA], ADA)
    got = mma(a.view(np.float16), b.view(np.float16), c.view(np.float32), FP16[ADA], ADA)
    assert got.dtype == np.uint32
    assert (got == want).all()


def test_an_empty_batch_gives_an_empty_result():
    a, b, c = product(seeded("empty"), (0,), 16, 8, 16)
    assert mma(a, b, c, FP16[ADA], ADA).shape == (0, 16, 8)


def test_inputs_are_not_written():
    a, b, c = product(seeded("inputs"), (3,), 16, 8, 32)
    a[0, 0, 0], c[1, 1, 1] = 0x7C01, 0xFF800000
    before = [x.copy() for x in (a, b, c)]
    mma(a, b, c, FP16[ADA], ADA)
    for x, y in zip((a, b, c), before, strict=True):
        assert (x == y).all()


GOOD = product(seeded("good"), (), 16, 8, 16)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*GOOD, "mma.sync.m16n8k16.f32.f16.f16.f32", (7, 5)), "k8 f16"),
        ((*GOOD, "mma.sync.m16n8k16.f32.bf16.bf16.f32", (7, 5)), "not modelled"),
        ((*GOOD, "mma.sync.m16n8k16.f32.f16.f16.f32", (6, 1)), "7.0, 7.5, 8.0"),
        ((*GOOD, "mma.sync.m16n8k16.f32.f16.f16.f16", ADA), "mma.sync.m16n8k16.f32"),
        ((*GOOD, "mma.sync.m16n8k16.f32.f64.f64.f32", ADA), "not a matrix instruction"),
        ((*GOOD, "mma.sync.m16n8k16.wide.f32.f16.f16.f32", ADA), "not a matrix instruction"),
        ((*GOOD, "wgmma.m64n8k16.f32.f16.f16", ADA), "not modelled"),
        ((*GOOD, "mma.sync.kind::f8f6f4.m16n8k32.f32.e4m3.e4m3.f32", ADA), "not modelled"),
        ((*GOOD, "mma.sync.m16n8k16.satfinite.f32.f16.f16.f32", ADA), "not modelled"),
        ((*GOOD, "mma.sync.m16n8k16.f16.bf16.bf16.f16", ADA), "not modelled"),
        ((*GOOD, "mma.sync.m16n8k64.kind::mxf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0",
          RTX), "not a matrix instruction"),
        ((GOOD[0].astype(np.uint32), *GOOD[1:], FP16[ADA], ADA), "uint16"),
        ((GOOD[0][:, :8], GOOD[1][:8], GOOD[2], FP16[ADA], ADA), "multiple"),
        ((GOOD[0], GOOD[1][:8], GOOD[2], FP16[ADA], ADA), "do not multiply"),
        ((GOOD[0], GOOD[1], GOOD[2][:3], FP16[ADA], ADA), "do not multiply"),
        ((GOOD[0][0], GOOD[1], GOOD[2], FP16[ADA], ADA), "do not multiply"),
        ((GOOD[0][None, None].repeat(2, 0), GOOD[1][None].repeat(3, 0), GOOD[2], FP16[ADA], ADA),
         None),
        ((GOOD[0][None].repeat(2, 0), GOOD[1][None].repeat(3, 0), GOOD[2], FP16[ADA], ADA),
         "broadcast"),
    ],
)  # fmt: skip
def test_wrong_requests_say_what_is_there(arguments, says):
    if says is None:
        assert mma(*arguments).shape == (2, 3, 16, 8)
        return
    with pytest.raises(UsageError) as error:
        mma(*arguments)
    assert says in f"{error.value.message} {error.value.fix}"


def test_scales_are_asked_for_and_checked():
    name = "mma.sync.m16n8k64.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0"
    a, b, c = np.zeros((16, 64), "u1"), np.zeros((64, 8), "u1"), np.zeros((16, 8), "u4")
    scale_a, scale_b = np.zeros((16, 2), "u1"), np.zeros((2, 8), "u1")
    assert (mma_block_scaled(a, b, c, scale_a, scale_b, name, RTX) == 0).all()
    with pytest.raises(UsageError, match="needs block scales"):
        mma(a, b, c, name, RTX)
    with pytest.raises(UsageError, match="takes no block scales"):
        mma_block_scaled(*GOOD, scale_a, scale_b, FP16[RTX], RTX)
    with pytest.raises(UsageError, match=r"not \(\.\.\., 16, 2\)"):
        mma_block_scaled(a, b, c, scale_a[:, :1], scale_b, name, RTX)


def test_status_of_what_is_recorded():
    recorded = {(form, H100) for form in FORMS.values()}
    asked = recorded | {(name, capability) for name, capability, _ in CASES}
    found = {key for key in asked if model(*key).verified == "recorded"}
    same = {"mma.sync.m16n8k16.f32.f16.f16.f32", "mma.sync.m16n8k8.f32.f16.f16.f32"}
    same.add("wgmma.m64n8k8.f32.tf32.tf32")  # tests/gpu/test_wgmma_card.py holds it to the card
    assert recorded <= found
    for name, capability in found - recorded:
        assert capability == H100
        assert name.replace("n16k", "n8k") in {*FORMS.values(), *same}


def test_every_format_path_that_says_so_is_modelled():
    """The instruction a format's row names exists here, on every capability it names."""
    for row in FORMATS.values():
        for path in row.paths:
            if path.family == "tcgen05" or row.name == "int4":
                continue
            for capability in filter(path.covers, CAPABILITIES):
                assert model(path.instruction, capability).k == path.k


def test_the_depth_of_an_instruction_is_the_k_of_its_name():
    for name, k in (
        ("mma.sync.m8n8k16.s32.s8.s8.s32", 16),
        ("mma.sync.m16n8k8.f32.tf32.tf32.f32", 8),
        ("wgmma.m64n256k32.f32.e4m3.e4m3", 32),
    ):
        assert tensorcore.depth(name) == k
    with pytest.raises(UsageError, match="not a matrix instruction"):
        tensorcore.depth("fma.rn.f32")


def test_what_is_modelled_depends_on_the_capability():
    bf16 = "mma.sync.m16n8k16.f32.bf16.bf16.f32"
    assert [tensorcore.is_modelled(bf16, c) for c in ((7, 5), (8, 0), (8, 7))] == [
        False,
        True,
        False,
    ]
    assert not tensorcore.is_modelled("fma.rn.f32", (9, 0))
