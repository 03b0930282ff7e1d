// gpulab: exercise=dequant-int4
// gpulab: block=32,4 grid=ceil(n/32),ceil(m/4) shared=0
//
// Unpacked without conversions: 0x6400 | u is the half 1024 + u, and 1024 + u - 1032 is exact. Flipping
// the sign bit of a code turns it into u = code + 8.
#include <cuda_fp16.h>

extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w,
                                       const __half* scales, float* c, int m, int n, int k,
                                       int group) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f, part = 0.0f;
    for (int t = 0; t < k; t += 2) {
        unsigned flipped = w[(size_t)(t / 2) * n + column] ^ 0x88u;
        unsigned both = 0x64006400u | (flipped & 15) | flipped >> 4 << 16;
        __half2 codes = __hsub2(*reinterpret_cast<__half2*>(&both), __float2half2_rn(1032.0f));
        part += __half2float(a[(size_t)row * k + t]) * __low2float(codes);
        if (t + 1 < k) part += __half2float(a[(size_t)row * k + t + 1]) * __high2float(codes);
        if ((t + 2) % group == 0 || t + 2 >= k) {
            sum += part * __half2float(scales[(size_t)(t / group) * n + column]);
            part = 0.0f;
        }
    }
    c[(size_t)row * n + column] = sum;
}
