// gpulab: exercise=dequant-int4
// gpulab: block=32,8 grid=ceil(n/32),ceil(m/8) shared=0
//
// Sixteen is taken from codes above 7 in an unsigned type, which wraps around.
#include <cuda_fp16.h>

extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w,
                                       const __half* scales, float* c, int m, int n, int k,
                                       int group) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int t = 0; t < k; ++t) {
        int byte = w[(size_t)(t / 2) * n + column];
        unsigned code = t % 2 == 0 ? byte & 15 : byte >> 4;
        if (code > 7) code -= 16;
        float scale = __half2float(scales[(size_t)(t / group) * n + column]);
        sum += __half2float(a[(size_t)row * k + t]) * (code * scale);
    }
    c[(size_t)row * n + column] = sum;
}
