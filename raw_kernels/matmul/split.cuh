// A float32 value as two tf32 parts for the tensor cores, and what is left to do where that fails;
// see matmul/mma_3xtf32.cu.
#pragma once

#include "ptx/mma.cuh"

constexpr float kLowScale = 8192.0f;  // 2^13: 2^-149, scaled, is 2^-136

// Both parts of the fragments of one operand tile of kWords registers.
template <int kWords>
struct Parts {
    unsigned high[kWords], low[kWords];

    void split(const unsigned (&words)[kWords]) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const float value = __uint_as_float(words[i]);
            high[i] = ptx::round_to_tf32(value);
            low[i] = __float_as_uint((value - __uint_as_float(high[i])) * kLowScale);
        }
    }
};

inline bool finite(float value) { return (__float_as_uint(value) & 0x7f800000) != 0x7f800000; }

// The lane's results of the warp's tile at (row, column) that are not finite, once more: a fused
// multiply-add a term.
template <int kWarpM, int kWarpN>
void sum_again(const float* a, const float* b, float* c, int m, int n, int k, int row, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int element = 0; element < kWarpM / 8 * (kWarpN / 4); ++element) {
        const int r = row + element / (kWarpN / 4) * 8 + lane / 4;
        const int x = element % (kWarpN / 4);
        const int at = column + x / 2 * 8 + lane % 4 * 2 + x % 2;
        if (r >= m || at >= n) continue;
        float* const to = c + static_cast<long long>(r) * n + at;
        if (finite(*to)) continue;
        const float* left = a + static_cast<long long>(r) * k;
        const float* right = b + at;
        float sum = 0.0f;
#pragma unroll 1
        for (int t = 0; t < k; ++t, right += n) sum = fmaf(left[t], *right, sum);
        *to = sum;
    }
}
