// gpulab: exercise=dequant-int4
// gpulab: block=32 grid=ceil(n/128),m shared=0
//
// A thread computes four columns: four bytes at once where the row of w allows it.
#include <cuda_fp16.h>

extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w,
                                       const __half* scales, float* c, int m, int n, int k,
                                       int group) {
    int row = blockIdx.y, column = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= n) return;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, scale[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int t = 0; t < k; t += 2) {
        const unsigned char* from = w + (size_t)(t / 2) * n + column;
        unsigned bytes = 0;
        if (n % 4 == 0) bytes = *reinterpret_cast<const unsigned*>(from);
        else for (int i = 0; i < min(4, n - column); ++i) bytes |= (unsigned)from[i] << 8 * i;
        float first = __half2float(a[(size_t)row * k + t]);
        float second = t + 1 < k ? __half2float(a[(size_t)row * k + t + 1]) : 0.0f;
        for (int i = 0; i < 4; ++i) {
            if (column + i >= n) break;
            if (t % group == 0) scale[i] = __half2float(scales[(size_t)(t / group) * n + column + i]);
            int low = (int)(bytes << (28 - 8 * i)) >> 28, high = (int)(bytes << (24 - 8 * i)) >> 28;
            sum[i] += first * (low * scale[i]);
            if (t + 1 < k) sum[i] += second * (high * scale[i]);
        }
    }
    for (int i = 0; i < 4 && column + i < n; ++i) c[(size_t)row * n + column + i] = sum[i];
}
