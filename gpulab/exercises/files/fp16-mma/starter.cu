// gpulab: exercise=fp16-mma
// gpulab: block=32 grid=ceil(n/8),ceil(m/16) shared=0
#include <cuda_fp16.h>

// C (m, n) = A (m, k) B (k, n), row-major, on tensor cores.
// This file compiles and runs, but it sums only the first 16 terms. Make it right.
//
// One warp computes 16 x 8 elements with mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments").
__device__ unsigned pack(const __half* p, size_t first, size_t second, bool in0, bool in1) {
    __half2 pair = __halves2half2(in0 ? p[first] : __half(0.0f), in1 ? p[second] : __half(0.0f));
    return *(unsigned*)&pair;
}

extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    const int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
    const int row = blockIdx.y * 16 + group, column = blockIdx.x * 8 + group;
    float d[4] = {};
    {
        // Your work: walk along k in steps of 16.
        int t = 0;
        unsigned ra[4], rb[2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = row + i % 2 * 8, s = t + pair + i / 2 * 8;
            ra[i] = pack(a, (size_t)r * k + s, (size_t)r * k + s + 1, r < m && s < k, r < m && s + 1 < k);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int s = t + pair + i * 8;
            rb[i] = pack(b, (size_t)s * n + column, (size_t)(s + 1) * n + column, s < k && column < n,
                         s + 1 < k && column < n);
        }
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = row + i / 2 * 8, s = blockIdx.x * 8 + pair + i % 2;
        if (r < m && s < n) c[(size_t)r * n + s] = d[i];
    }
}
