"""What registers and local memory hold before anything is put there."""

from __future__ import annotations

import numpy as np
import pytest
from cudacase import run

from gpulab.emulator import values

F = np.float32


def test_what_was_never_set_is_no_zero() -> None:
    """A sum in a register or in local memory that starts as nothing comes out as NaN."""
    source = """extern "C" __global__ void kernel(const float* a, float* b, int n) {
  float sum, own[4];
  for (int i = 0; i < n; i++) { sum += a[i]; own[(i + threadIdx.x) & 3] += a[i]; }
  b[threadIdx.x] = sum;
  b[32 + threadIdx.x] = own[threadIdx.x & 3];
}"""
    got = run(source, [np.ones(8, F), np.zeros(64, F), 8]).arrays[1]
    assert np.isnan(got).all()


UNSET_REGISTERS = """.version 7.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 to) {
  .reg .b64 %to; .reg .f32 %f; .reg .u16 %h; .reg .f64 %d; .reg .pred %p; .reg .u32 %r;
  .local .align 4 .b8 own[8];
  ld.param.u64 %to, [to];
  st.global.f32 [%to], %f;
  ld.local.u32 %r, [own+4];
  st.global.u32 [%to+4], %r;
  st.global.f64 [%to+8], %d;
  st.global.u16 [%to+16], %h;
  selp.u32 %r, 1, 0, %p;
  st.global.u32 [%to+20], %r;
  ret;
}"""


@pytest.mark.parametrize(
    ("bits", "holds"),
    [
        (values.UNSET, (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0xFFFF, 1)),
        (values.OTHERWISE_UNSET, (0x7149F2CA, 0x7149F2CA, 0x7149F2CA7149F2CA, 0xF2CA, 0)),
    ],
)
def test_what_is_held_before_it_is_set_can_be_chosen(bits, holds) -> None:
    """Registers of every width, a predicate and local memory; 1e30 as float32 the second time."""
    got = run("", [np.zeros(24, np.uint8)], block=(1,), text=UNSET_REGISTERS, unset=bits).arrays[0]
    word, local, double, half, _, predicate = got.view("u4,u4,u8,u2,u2,u4")[0]
    assert (word, local, double, half, predicate) == holds
    assert np.uint32(0x7149F2CA).view(F) == np.float32(1e30)
