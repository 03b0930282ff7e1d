// gpulab: exercise=rmsnorm
// gpulab: block=128 grid=ceil(rows/4)
//
// A warp a row, columns from the last to the first.
#include <cuda_fp16.h>

extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows,
                                   int cols, float eps) {
    int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (size_t)row * cols;
    y += (size_t)row * cols;
    float squares = 0.0f;
    for (int i = cols - 1 - lane; i >= 0; i -= 32) {
        float value = __half2float(x[i]);
        squares = fmaf(value, value, squares);
    }
    for (int step = 1; step < 32; step *= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
    float rstd = 1.0f / sqrtf(squares / cols + eps);
    for (int i = lane; i < cols; i += 32) {
        y[i] = __hmul(__float2half(__half2float(x[i]) * rstd), weight[i]);
    }
}
