// C (m, n) = A (m, k) B (k, n), all row-major float32, any m, n, k >= 1, on the tensor cores by
// mma.sync at float32's accuracy.
//
// The idea: a float32 value is a tf32 high part, hi = x rounded to nearest, and a tf32 low part,
// lo = x - hi, and a b = hi hi + (lo hi + hi lo) up to 2^-21 |a b|; lo lo is left out. Three
// products of the tensor cores stand for one. x - hi is at most 2^12 of x's ulps and needs no
// rounding: to 11 bits it loses at most one ulp either way, so the instruction may cut it. Values
// are split in registers, behind shared memory: the traffic is that of any float32 kernel
// (mma_loop.cuh).
//
// Two things keep the sum as good as the products. Tensor cores cut what they add, always toward
// zero, and a long sum of theirs loses far more than roundings would: hi hi of every eight terms is
// a sum from zero, added to a float32 sum by the CUDA cores, which round. And lo is kept 2^13 times
// larger in a sum of its own: tf32 ends at 2^-136, so that the low part of a small number would be
// lost otherwise; with the factor its last bit is float32's, 2^-149. The sum of lo hi + hi lo is
// 2^-10 of the other at most and may stay in the tensor cores' hands to the end.
//
// A value that is not finite, or so large that a part overflows (from 2^126 on), leaves Inf or NaN
// in every result it goes into, since x - hi of Inf and NaN is NaN; so does a result near float32's
// end. Such a result is computed again term by term on the CUDA cores, whatever it then is.
//
// Source: CUTLASS, example 27 (3xTF32); H. Ootomo and R. Yokota, "Recovering single precision
// accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", IJHPCA 36(4),
// 2022 (sums outside of the tensor core, the scaled low part).
#include "matmul/mma_loop.cuh"
#include "matmul/split.cuh"

template <class T>
struct SplitSums {
    float sum[T::kMTiles][T::kNTiles][4];    // of hi hi
    float cross[T::kMTiles][T::kNTiles][4];  // of lo hi + hi lo, times kLowScale
    Fragments<T> read;                       // as float32; refilled as soon as they are split

    void clear() {
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i)
#pragma unroll
            for (int j = 0; j < T::kNTiles; ++j)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[i][j][r] = cross[i][j][r] = 0.0f;
    }

    void begin(const Reader<4, T>& reader, unsigned stage) { reader.read(read, stage, 0); }

    template <class Meanwhile>
    void turn(const Reader<4, T>& reader, unsigned stage, int next, const Meanwhile& meanwhile) {
        Parts<2> b[T::kNTiles];
#pragma unroll
        for (int j = 0; j < T::kNTiles; ++j) b[j].split(read.b[j]);
        reader.read_b(read, stage, next);
        meanwhile();
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i) {
            Parts<4> a;
            a.split(read.a[i]);
            reader.read_a(read, i, stage, next);
#pragma unroll
            for (int n = 0; n < 2 * T::kNTiles; ++n) {  // all lo hi, then all hi lo: none waits
                const int j = n % T::kNTiles;
                const bool left = n < T::kNTiles;
                ptx::mma_m16n8k8_tf32(cross[i][j], left ? a.low : a.high,
                                      left ? b[j].high : b[j].low);
            }
#pragma unroll
            for (int j = 0; j < T::kNTiles; ++j) {
                float part[4];
                ptx::mma_m16n8k8_tf32_from_zero(part, a.high, b[j].high);
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[i][j][r] += part[r];
            }
        }
    }

    float value(int i, int j, int e) const {
        const int r = i % 2 * 2 + e;
        return fmaf(cross[i / 2][j][r], 1.0f / kLowScale, sum[i / 2][j][r]);
    }
};

// kVector: n and k are multiples of 4, so every row starts on 16 bytes; else any n and k.
// Grid: one block a tile of C; block: T::kThreads; dynamic shared memory: T::kStages *
// T::kStageBytes.
template <class T, bool kVector>
__global__ void __launch_bounds__(T::kThreads)
    matmul_mma_3xtf32(const float* a, const float* b, float* c, int m, int n, int k) {
    const Problem p{reinterpret_cast<const char*>(a), reinterpret_cast<const char*>(b), m, n, k};
    SplitSums<T> sums;
    multiply_tile<4, T, kVector>(p, sums, [&](int row, int column) {
        bool all_finite = true;
        store_tile<4, T, kVector>(c, m, n, row, column, [&](int i, int j, int e) {
            const float value = sums.value(i, j, e);
            all_finite &= finite(value);
            return value;
        });
        if (!all_finite) sum_again<T::kWarpM, T::kWarpN>(a, b, c, m, n, k, row, column);
    });
}
