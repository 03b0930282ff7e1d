// The warp's matrix instructions: mma.sync and ldmatrix, one function an instruction, no tiling
// policy.
//
// mma.sync D = A B + D on a 16 x 8 tile of D. In every function A is row-major, B column-major, and
// with lane = 4 g + t a lane holds (PTX ISA, "Matrix Fragments for mma.m16n8k8 / .m16n8k16 /
// .m16n8k32"):
//   D: rows g and g + 8, columns 2 t and 2 t + 1;
//   A: 4-byte words t and t + 4 of rows g and g + 8 (a0: g, t; a1: g + 8, t; a2: g, t + 4; a3: g +
//   8, t + 4); B: 4-byte words t and t + 4 of column g (b0, b1).
// Seen in words the layout is the same for 16-bit, 32-bit and 8-bit operands: 32 bytes of k an
// instruction. The half-depth instructions (m16n8k8 f16; m8n8k16 s8) read the same words and are
// issued two or four times.
//
// A tf32 operand is a float32 register whose low 13 bits the instruction ignores: it truncates. The
// lab's tf32 storage has those bits zero already (rounded by the encoder), so no cvt.rna.tf32 is
// needed there; round_to_tf32 is for float32 values on their way to a tf32 operand.
//
// Source: PTX ISA, "Matrix multiply-accumulate instructions: mma", "Warp-level matrix load:
// ldmatrix".
#pragma once

namespace ptx {

// Operand types, named as PTX spells them. Storage is what an array of them is made of.
struct f16 {
    using Storage = unsigned short;
};
struct bf16 {
    using Storage = unsigned short;
};
struct tf32 {
    using Storage = float;
};
struct e4m3 {
    using Storage = unsigned char;
};
struct e5m2 {
    using Storage = unsigned char;
};
struct s8 {
    using Storage = signed char;
};

// The nearest tf32 value, of two the one further from zero: what cvt.rna.tf32 gives for a number, in
// two instructions instead of four. It overflows to infinity; NaN may become zero.
inline unsigned round_to_tf32(float value) {
    return (__float_as_uint(value) + 0x1000) & 0xffffe000;
}

// ---- mma.sync -----------------------------------------------------------------------------------

// One statement: float (or int) accumulator in four registers, four words of A, two of B.
#define GPULAB_MMA_WORDS4(NAME, SHAPE, TYPE, ACCUMULATOR, REGISTER, CLASS)                \
    void NAME(REGISTER(&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {          \
        asm volatile("mma.sync.aligned." SHAPE ".row.col." ACCUMULATOR "." TYPE "." TYPE  \
                     "." ACCUMULATOR                                                      \
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                     : "+" CLASS(d[0]), "+" CLASS(d[1]), "+" CLASS(d[2]), "+" CLASS(d[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }

GPULAB_MMA_WORDS4(mma_m16n8k16_f16, "m16n8k16", "f16", "f32", float, "f")    // from sm_80
GPULAB_MMA_WORDS4(mma_m16n8k16_bf16, "m16n8k16", "bf16", "f32", float, "f")  // from sm_80
GPULAB_MMA_WORDS4(mma_m16n8k8_tf32, "m16n8k8", "tf32", "f32", float, "f")    // from sm_80
GPULAB_MMA_WORDS4(mma_m16n8k32_e4m3, "m16n8k32", "e4m3", "f32", float, "f")  // from sm_89
GPULAB_MMA_WORDS4(mma_m16n8k32_e5m2, "m16n8k32", "e5m2", "f32", float, "f")  // from sm_89
GPULAB_MMA_WORDS4(mma_m16n8k32_s8, "m16n8k32", "s8", "s32", int, "r")        // from sm_80
#undef GPULAB_MMA_WORDS4

// D = A B: a sum that starts from zero. From sm_80.
void mma_m16n8k8_tf32_from_zero(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

// Half accumulator: D is two registers of two halves (rows g and g + 8). From sm_80.
void mma_m16n8k16_f16_acc_f16(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
        "{%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Eight of k: two words of A (rows g and g + 8), one of B. From sm_75.
void mma_m16n8k8_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, "
        "%1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

void mma_m16n8k8_f16_acc_f16(unsigned (&d)[2], unsigned a0, unsigned a1, unsigned b0) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a0), "r"(a1), "r"(b0));
}

// An 8 x 8 tile of D: row g, columns 2 t and 2 t + 1; one word of A (row g), one of B. From sm_75.
void mma_m8n8k16_s8(int& d0, int& d1, unsigned a0, unsigned b0) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d0), "+r"(d1)
                 : "r"(a0), "r"(b0));
}

// ---- 16 x 8 x 32 bytes: the step every tile loop is made of -------------------------------------

// Atom<operand type, accumulator, k of the instruction>: D += A B over 32 bytes of k, in ascending
// order of k. Register x kRegisters is the lane's share of D; value(d, half, e) is its element in
// row g + 8 half, column 2 t + e, as stored in Output.
template <class Operand, class Accumulator, int kInstructionK>
struct Atom;

template <class Operand_, class Word>
struct FourWordAtom {
    using Operand = Operand_;
    using Register = Word;
    using Output = Word;
    static constexpr int kRegisters = 4;
    static Output value(const Register (&d)[4], int half, int e) { return d[2 * half + e]; }
};

struct HalfAtom {
    using Operand = f16;
    using Register = unsigned;
    using Output = float;
    static constexpr int kRegisters = 2;
    static Output value(const Register (&d)[2], int half, int e) {
        float wide;
        const unsigned short bits = static_cast<unsigned short>(e == 0 ? d[half] : d[half] >> 16);
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
        return wide;
    }
};

template <>
struct Atom<f16, float, 16> : FourWordAtom<f16, float> {
    static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k16_f16(d, a, b);
    }
};

template <>
struct Atom<bf16, float, 16> : FourWordAtom<bf16, float> {
    static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k16_bf16(d, a, b);
    }
};

template <>
struct Atom<tf32, float, 8> : FourWordAtom<tf32, float> {
    static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k8_tf32(d, a, b);
    }
};

template <>
struct Atom<e4m3, float, 32> : FourWordAtom<e4m3, float> {
    static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k32_e4m3(d, a, b);
    }
};

template <>
struct Atom<e5m2, float, 32> : FourWordAtom<e5m2, float> {
    static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k32_e5m2(d, a, b);
    }
};

template <>
struct Atom<s8, int, 32> : FourWordAtom<s8, int> {
    static void multiply(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k32_s8(d, a, b);
    }
};

template <>
struct Atom<f16, f16, 16> : HalfAtom {
    static void multiply(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k16_f16_acc_f16(d, a, b);
    }
};

// sm_75: two half-depth instructions, the lower k first.
template <>
struct Atom<f16, float, 8> : FourWordAtom<f16, float> {
    static void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k8_f16(d, a[0], a[1], b[0]);
        mma_m16n8k8_f16(d, a[2], a[3], b[1]);
    }
};

template <>
struct Atom<f16, f16, 8> : HalfAtom {
    static void multiply(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m16n8k8_f16_acc_f16(d, a[0], a[1], b[0]);
        mma_m16n8k8_f16_acc_f16(d, a[2], a[3], b[1]);
    }
};

// sm_75: four 8 x 8 x 16 instructions; integer sums are exact, so the order is free.
template <>
struct Atom<s8, int, 16> : FourWordAtom<s8, int> {
    static void multiply(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        mma_m8n8k16_s8(d[0], d[1], a[0], b[0]);
        mma_m8n8k16_s8(d[2], d[3], a[1], b[0]);
        mma_m8n8k16_s8(d[0], d[1], a[2], b[1]);
        mma_m8n8k16_s8(d[2], d[3], a[3], b[1]);
    }
};

// ---- ldmatrix -----------------------------------------------------------------------------------

// Matrices of 8 rows x 16 bytes; lane 8 i + r gives the shared address of row r of matrix i, and
// lane 4 g + t receives word t of row g of every matrix. Addresses are multiples of 16 bytes. From
// sm_75.
void ldmatrix_x4(unsigned (&words)[4], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared)
                 : "memory");
}

// As above for two matrices (lanes 0 to 15 give the addresses).
void ldmatrix_x2(unsigned (&words)[2], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(shared)
                 : "memory");
}

// Transposed: lane 4 g + t receives the 16-bit elements of rows 2 t and 2 t + 1 (low half first) of
// column g.
void ldmatrix_x4_trans(unsigned (&words)[4], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared)
                 : "memory");
}

void ldmatrix_x2_trans(unsigned (&words)[2], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(shared)
                 : "memory");
}

// Picks four of the eight bytes of (low, high): selector digit i names the source of byte i. PTX
// ISA, "prmt".
template <unsigned kSelector>
unsigned permute_bytes(unsigned low, unsigned high) {
    unsigned word;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "n"(kSelector));
    return word;
}

}  // namespace ptx
