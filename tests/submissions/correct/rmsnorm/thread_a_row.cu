// gpulab: exercise=rmsnorm
// gpulab: block=32 grid=ceil(rows/32)
//
// One thread a row: slow, and right.
#include <cuda_fp16.h>

extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows,
                                   int cols, float eps) {
    int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= rows) return;
    float squares = 0.0f;
    for (int i = 0; i < cols; ++i) {
        float value = __half2float(x[row * cols + i]);
        squares += value * value;
    }
    float rstd = rsqrtf(squares / cols + eps);
    for (int i = 0; i < cols; ++i) {
        __half normalised = __float2half(__half2float(x[row * cols + i]) * rstd);
        y[row * cols + i] = __hmul(normalised, weight[i]);
    }
}
