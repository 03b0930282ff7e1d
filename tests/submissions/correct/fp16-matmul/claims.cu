// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
// gpulab: claim max_abs_err=1e-3 gate_fraction=0.2 time_ms=1e6 baseline_ms=1e6
// gpulab: claim speedup_from="half the bytes"
// An honest kernel whose times are claimed wrongly: claims are answered, and decide nothing.
#include <cuda_fp16.h>

extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float even = 0.0f, odd = 0.0f;
    for (int t = 0; t < k; ++t) {
        float product = __half2float(a[(size_t)row * k + t]) * __half2float(b[(size_t)t * n + column]);
        if (t % 2 == 0) even += product; else odd += product;
    }
    c[(size_t)row * n + column] = even + odd;
}
