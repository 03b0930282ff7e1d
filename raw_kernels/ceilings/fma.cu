// How fast the CUDA cores take float32 multiply-adds: everything stays in registers.
//
// The idea: each thread keeps kChains sums that do not wait for each other. To sum i it adds a[i] * b and
// a[i] * (1 - b) `pairs` times, and a[i] * b once more, which makes a[i] * (pairs + b): integers that float32 holds
// exactly. Multiply-adds in total: threads * kChains * (2 pairs + 1).
//
// a is (kChains), b is one number, sums is (threads, kChains).
// Source: PTX ISA, "fma".
constexpr int kThreads = 256, kChains = 16;

__global__ void __launch_bounds__(kThreads, 4) ceiling_fma(const float* a, const float* b, float* sums, int pairs) {
    float factors[kChains], mine[kChains];
    const float first = b[0], second = 1.0f - first;
#pragma unroll
    for (int i = 0; i < kChains; ++i) factors[i] = a[i], mine[i] = 0.0f;
#pragma unroll 8
    for (int pair = 0; pair < pairs; ++pair) {
#pragma unroll
        for (int i = 0; i < kChains; ++i) mine[i] = fmaf(factors[i], first, mine[i]);
#pragma unroll
        for (int i = 0; i < kChains; ++i) mine[i] = fmaf(factors[i], second, mine[i]);
    }
    const long long thread = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kChains; ++i) sums[thread * kChains + i] = fmaf(factors[i], first, mine[i]);
}
