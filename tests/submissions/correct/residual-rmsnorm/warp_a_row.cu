// gpulab: exercise=residual-rmsnorm
// gpulab: block=32,2 grid=ceil(rows/2)
//
// A warp a row, from the last column to the first.
#include <cuda_fp16.h>

extern "C" __global__ void residual_rmsnorm(const __half* x, const __half* residual,
                                            const __half* weight, __half* y, __half* residual_out,
                                            int rows, int cols, float eps) {
    int row = blockIdx.x * 2 + threadIdx.y;
    if (row >= rows) return;
    size_t start = (size_t)row * cols;
    float squares = 0.0f;
    for (int i = cols - 1 - (int)threadIdx.x; i >= 0; i -= 32) {
        float sum = __half2float(x[start + i]) + __half2float(residual[start + i]);
        squares = fmaf(sum, sum, squares);
    }
    for (int step = 16; step > 0; step /= 2) squares += __shfl_down_sync(~0u, squares, step);
    float rstd = rsqrtf(__shfl_sync(~0u, squares, 0) / cols + eps);
    for (int i = threadIdx.x; i < cols; i += 32) {
        float sum = __half2float(x[start + i]) + __half2float(residual[start + i]);
        residual_out[start + i] = __float2half(sum);
        y[start + i] = __hmul(__float2half(sum * rstd), weight[i]);
    }
}
