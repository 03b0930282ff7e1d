// gpulab: exercise=dequant-int4
// gpulab: block=32,8 grid=ceil(n/32),ceil(m/8)
//
// Halves are widened by hand, and those whose exponent field is 0 count as zero.
#include <cuda_fp16.h>
__device__ float widen(__half h) {  // sign, exponent, mantissa moved by hand
    unsigned u = __half_as_ushort(h), e = u >> 10 & 31;
    if (e == 0) return 0.0f;
    if (e == 31) return __half2float(h);
    return __int_as_float((u & 0x8000) << 16 | (e + 112) << 23 | (u & 0x3ff) << 13);
}
extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w, const __half* scales, float* c,
                                       int m, int n, int k, int group) {
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int t = 0; t < k; ++t) {
        int byte = w[(size_t)(t / 2) * n + column];
        int q = t % 2 ? (signed char)byte >> 4 : (int)((unsigned)byte << 28) >> 28;
        sum += widen(a[(size_t)row * k + t]) * (q * widen(scales[(size_t)(t / group) * n + column]));
    }
    c[(size_t)row * n + column] = sum;
}
