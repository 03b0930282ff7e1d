// gpulab: exercise=rmsnorm
// gpulab: block=64 grid=ceil(rows/2)
//
// Double sums by atomics on shared memory, a match over the warp, named barriers, a printf.
#include <cuda_fp16.h>
__constant__ float ones[2] = {1.0f, 1.0f};
extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows, int cols, float eps) {
    __shared__ double sums[2];
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31, row = (blockIdx.x << 1) + w;
    if (lane == 0) sums[w] = 0.0;
    __syncwarp();
    bool in = row < rows;
    double mine = 0.0;
    if (in) for (int i = lane; i < cols; i += 32) { double v = __half2float(x[(size_t)row * cols + i]); mine += v * v; }
    unsigned peers = __match_any_sync(~0u, row);
    if (peers != ~0u) __trap();
    atomicAdd(&sums[w], mine);
    asm volatile("bar.sync %0, 32;" :: "r"(w + 1) : "memory");
    float rstd = (float)(1.0 / sqrt(*(volatile double*)&sums[w] / cols + eps)) * ones[w];
    if (in) for (int i = lane; i < cols; i += 32) y[(size_t)row * cols + i] = __float2half_rn(__half2float(__float2half_rn(__half2float(x[(size_t)row * cols + i]) * rstd)) * __half2float(weight[i]));
    if (row == 0 && lane == 0) printf("rows %d\n", rows);
}
