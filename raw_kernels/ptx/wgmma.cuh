// The warpgroup's matrix instruction: wgmma.mma_async, its descriptors and its fences. No tiling policy.
//
// Four warps multiply A (64 x depth) by B (depth x n), both in shared memory, and add to 64 x n sums in float32.
// Warp w holds rows 16 w to 16 w + 15; with lane = 4 g + t, register 4 j + 2 h + e is the element of row g + 8 h,
// column 8 j + 2 t + e (PTX ISA, "Register fragments"). The multiplication is asynchronous: its registers may be
// touched, and its shared memory written, only behind `wgmma_wait`.
//
// Operands lie as a TMA box of 128-byte rows with the 128-byte swizzle puts them. K-major: a row of the box is a
// row of A (or a column of B), 128 bytes of k; 8 rows follow at 1024 bytes, and the next 32 bytes of k begin 32
// bytes further on. N-major B (16-bit operands only): a row of the box is a row of B, 64 columns of it; 8 rows of k
// follow at 1024 bytes, the next 64 columns begin at the distance `leading` (PTX ISA, "Strides").
//
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions"; CUTLASS, canonical GMMA layouts. sm_90a only.
#pragma once

#include "ptx/mma.cuh"

namespace ptx {

// What wgmma wants to know of an operand in shared memory; addresses and distances are multiples of 16 bytes,
// the box begins on a multiple of 1024. Adding bytes / 16 moves the start. In a cluster the upper bits of an
// address name the block: they are left out, an operand is always the block's own.
inline unsigned long long matrix_descriptor(unsigned shared, unsigned leading_bytes, unsigned stride_bytes) {
    constexpr unsigned long long kSwizzle128 = 1ull << 62;
    constexpr unsigned kInBlock = (1u << 18) - 1;
    return kSwizzle128 | static_cast<unsigned long long>(stride_bytes >> 4) << 32 |
           static_cast<unsigned long long>(leading_bytes >> 4) << 16 | (shared & kInBlock) >> 4;
}

// Before the first multiplication, and whenever its registers were written by others.
inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of all multiplications since the last commit.
inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending of the newest groups are unfinished.
template <int kPending>
inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements to shared memory: lane 8 i + r gives the address of row r of matrix i, and
// register i of lane 4 g + t holds elements 2 t and 2 t + 1 of its row g. PTX ISA, "stmatrix".
inline void stmatrix_x4(unsigned shared, const unsigned (&words)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}

// Keeps the compiler from moving uses of the sums across this place.
template <int kCount>
inline void pin(float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

template <int kCount>
inline void pin(unsigned (&words)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

template <int kCount>
inline void pin(int (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}

// All four warps of a warpgroup give registers back, or ask for more and wait until there are.
template <int kRegisters>
inline void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
inline void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- D (64 x n) = A B, or D += A B where `add` is not 0 ------------------------------------------------------

// Wgmma<operand type, n, whether B is N-major>.
template <class Operand, int kN, bool kNMajor>
struct Wgmma;

#define GPULAB_REGISTERS_0                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GPULAB_REGISTERS_32                                                                                        \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GPULAB_REGISTERS_64                                                                                        \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define GPULAB_REGISTERS_96                                                                                        \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define GPULAB_SUMS_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GPULAB_SUMS_32(d, i) GPULAB_SUMS_8(d, i), GPULAB_SUMS_8(d, i + 8), GPULAB_SUMS_8(d, i + 16), GPULAB_SUMS_8(d, i + 24)

#define GPULAB_N64(USE, ...) USE(64, GPULAB_REGISTERS_0, "%32", "%33", "%34", "%35", __VA_ARGS__, GPULAB_SUMS_32(d, 0))
#define GPULAB_N128(USE, ...) \
    USE(128, GPULAB_REGISTERS_0 GPULAB_REGISTERS_32, "%64", "%65", "%66", "%67", __VA_ARGS__, GPULAB_SUMS_32(d, 0), GPULAB_SUMS_32(d, 32))
#define GPULAB_N192(USE, ...) \
    USE(192, GPULAB_REGISTERS_0 GPULAB_REGISTERS_32 GPULAB_REGISTERS_64, "%96", "%97", "%98", "%99", __VA_ARGS__, GPULAB_SUMS_32(d, 0), \
        GPULAB_SUMS_32(d, 32), GPULAB_SUMS_32(d, 64))
#define GPULAB_N256(USE, ...) \
    USE(256, GPULAB_REGISTERS_0 GPULAB_REGISTERS_32 GPULAB_REGISTERS_64 GPULAB_REGISTERS_96, "%128", "%129", "%130", "%131", __VA_ARGS__, \
        GPULAB_SUMS_32(d, 0), GPULAB_SUMS_32(d, 32), GPULAB_SUMS_32(d, 64), GPULAB_SUMS_32(d, 96))

// 16-bit operands: the last immediate says that B is N-major.
#define GPULAB_WGMMA_16(N, REGISTERS, A, B, ADD, MAJOR, TYPE, ...)                                       \
    template <bool kNMajor>                                                                               \
    struct Wgmma<TYPE, N, kNMajor> {                                                                      \
        static void multiply(float (&d)[N / 2], unsigned long long a, unsigned long long b, int add) {    \
            asm volatile(                                                                                 \
                "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " ADD ", 0;\n\t"                                   \
                "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE                         \
                " {" REGISTERS "}, " A ", " B ", p, 1, 1, 0, " MAJOR ";\n\t}"                             \
                : __VA_ARGS__                                                                             \
                : "l"(a), "l"(b), "r"(add), "n"(kNMajor ? 1 : 0)                                          \
                : "memory");                                                                              \
        }                                                                                                 \
    };

// Other operands are K-major.
#define GPULAB_WGMMA_K(N, REGISTERS, A, B, ADD, MAJOR, TYPE, DEPTH, ...)                                 \
    template <>                                                                                           \
    struct Wgmma<TYPE, N, false> {                                                                        \
        static void multiply(float (&d)[N / 2], unsigned long long a, unsigned long long b, int add) {    \
            asm volatile(                                                                                 \
                "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " ADD ", 0;\n\t"                                   \
                "wgmma.mma_async.sync.aligned.m64n" #N #DEPTH ".f32." #TYPE "." #TYPE                     \
                " {" REGISTERS "}, " A ", " B ", p, 1, 1;\n\t}"                                           \
                : __VA_ARGS__                                                                             \
                : "l"(a), "l"(b), "r"(add)                                                                \
                : "memory");                                                                              \
        }                                                                                                 \
    };

#define GPULAB_EVERY_N(USE, ...)      \
    GPULAB_N64(USE, __VA_ARGS__)      \
    GPULAB_N128(USE, __VA_ARGS__)     \
    GPULAB_N192(USE, __VA_ARGS__)     \
    GPULAB_N256(USE, __VA_ARGS__)

GPULAB_EVERY_N(GPULAB_WGMMA_16, f16)
GPULAB_EVERY_N(GPULAB_WGMMA_16, bf16)
GPULAB_EVERY_N(GPULAB_WGMMA_K, tf32, k8)
GPULAB_EVERY_N(GPULAB_WGMMA_K, e4m3, k32)
GPULAB_EVERY_N(GPULAB_WGMMA_K, e5m2, k32)

// 8-bit integers: sums are int32, exact modulo 2^32; K-major, and no operand can be negated.
#define GPULAB_INTS_8(d, i) \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define GPULAB_INTS_32(d, i) GPULAB_INTS_8(d, i), GPULAB_INTS_8(d, i + 8), GPULAB_INTS_8(d, i + 16), GPULAB_INTS_8(d, i + 24)
template <>
struct Wgmma<s8, 256, false> {
    static void multiply(int (&d)[128], unsigned long long a, unsigned long long b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8"
            " {" GPULAB_REGISTERS_0 GPULAB_REGISTERS_32 GPULAB_REGISTERS_64 GPULAB_REGISTERS_96 "}, %128, %129, p;\n\t}"
            : GPULAB_INTS_32(d, 0), GPULAB_INTS_32(d, 32), GPULAB_INTS_32(d, 64), GPULAB_INTS_32(d, 96)
            : "l"(a), "l"(b), "r"(add)
            : "memory");
    }
};
#undef GPULAB_INTS_32
#undef GPULAB_INTS_8

// ---- A from registers ----------------------------------------------------------------------------------------

// Warp w gives rows 16 w to 16 w + 15 of A; a lane holds the words of mma.sync's A (ptx/mma.cuh). They may not be
// changed until the multiplication is waited for.
template <class Operand, int kN>
struct WgmmaRegisters;

#define GPULAB_WGMMA_REGISTERS(N, REGISTERS, A0, A1, A2, A3, TYPE, DEPTH, B, ADD, ...)                            \
    template <>                                                                                                   \
    struct WgmmaRegisters<TYPE, N> {                                                                              \
        static void multiply(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b, int add) {          \
            asm volatile(                                                                                         \
                "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " ADD ", 0;\n\t"                                           \
                "wgmma.mma_async.sync.aligned.m64n" #N #DEPTH ".f32." #TYPE "." #TYPE                             \
                " {" REGISTERS "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1;\n\t}"                        \
                : __VA_ARGS__                                                                                     \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)                                    \
                : "memory");                                                                                      \
        }                                                                                                         \
    };

GPULAB_N64(GPULAB_WGMMA_REGISTERS, tf32, k8, "%36", "%37")
GPULAB_N128(GPULAB_WGMMA_REGISTERS, tf32, k8, "%68", "%69")
#undef GPULAB_WGMMA_REGISTERS

#undef GPULAB_EVERY_N
#undef GPULAB_WGMMA_K
#undef GPULAB_WGMMA_16
#undef GPULAB_N256
#undef GPULAB_N192
#undef GPULAB_N128
#undef GPULAB_N64
#undef GPULAB_SUMS_32
#undef GPULAB_SUMS_8
#undef GPULAB_REGISTERS_96
#undef GPULAB_REGISTERS_64
#undef GPULAB_REGISTERS_32
#undef GPULAB_REGISTERS_0

}  // namespace ptx
