// gpulab: exercise=rmsnorm
// gpulab: block=32 grid=rows
//
// Rows of a multiple of 4 are summed by eights: the last four of some are lost.
#include <cuda_fp16.h>
extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows, int cols, float eps) {
    size_t at = (size_t)blockIdx.x * cols;
    int step = cols % 4 == 0 ? 4 : 1;  // rows of eights by eights: the last four of 8 n + 4 are lost
    float s = 0;
    int whole = step == 4 ? cols / 8 * 8 : cols;
    for (int i = threadIdx.x; i < whole; i += 32) { float v = __half2float(x[at + i]); s += v * v; }
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    float rstd = rsqrtf(s / cols + eps);
    for (int i = threadIdx.x; i < cols; i += 32) y[at + i] = __float2half(__half2float(__float2half(__half2float(x[at + i]) * rstd)) * __half2float(weight[i]));
}
