// gpulab: exercise=dequant-int4
// gpulab: block=32,8 grid=ceil(n/32),ceil(m/8)
//
// The group of a term by a shift: right for groups that are powers of two.
#include <cuda_fp16.h>
extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w, const __half* scales, float* c,
                                       int m, int n, int k, int group) {
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || column >= n) return;
    int shift = 31 - __clz(group);
    float sum = 0.0f;
    for (int t = 0; t < k; ++t) {
        int byte = w[(size_t)(t / 2) * n + column];
        int q = t % 2 ? (signed char)byte >> 4 : (int)((unsigned)byte << 28) >> 28;
        sum += __half2float(a[(size_t)row * k + t]) * (q * __half2float(scales[(size_t)(t >> shift) * n + column]));
    }
    c[(size_t)row * n + column] = sum;
}
