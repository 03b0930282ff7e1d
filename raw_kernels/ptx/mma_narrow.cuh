// The warp's matrix instruction for fp4 without block scales: mma.sync kind::f8f6f4, from sm_120a.
//
// Operands are bytes, one value each: a 4-bit code sits in bits 2 to 5. Fragments are those of the
// fp8 instruction in ptx/mma.cuh, so the same 32 bytes of k make a step.
//
// Source: PTX ISA, "Matrix multiply-accumulate instructions: mma", .kind::f8f6f4.
#pragma once

#include "ptx/mma.cuh"

namespace ptx {

struct e2m1 {
    using Storage = unsigned char;
};

void mma_m16n8k32_e2m1(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e2m1.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
struct Atom<e2m1, float, 32> : FourWordAtom<e2m1, float> {
    static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k32_e2m1(d, a, b);
    }
};

}  // namespace ptx
