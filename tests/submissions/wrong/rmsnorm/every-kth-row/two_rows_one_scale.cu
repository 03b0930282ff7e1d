// gpulab: exercise=rmsnorm
// gpulab: block=32 grid=ceil(rows/2)
//
// A warp takes two rows, and scales both by the first one's sum.
#include <cuda_fp16.h>

extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows,
                                   int cols, float eps) {
    float rstd = 0.0f;
    for (int r = 0; r < 2 && 2 * blockIdx.x + r < rows; ++r) {
        size_t start = (size_t)(2 * blockIdx.x + r) * cols;
        float squares = 0.0f;
        for (int i = threadIdx.x; i < cols; i += 32) {
            squares += __half2float(x[start + i]) * __half2float(x[start + i]);
        }
        for (int step = 16; step > 0; step /= 2) {
            squares += __shfl_xor_sync(0xffffffff, squares, step);
        }
        if (r == 0) rstd = rsqrtf(squares / cols + eps);
        for (int i = threadIdx.x; i < cols; i += 32) {
            __half normalised = __float2half(__half2float(x[start + i]) * rstd);
            y[start + i] = __hmul(normalised, weight[i]);
        }
    }
}
