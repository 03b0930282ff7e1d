// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16)
#include <cuda_fp16.h>
// Warps share the terms of a block's tile and meet by float atomics in shared memory.
extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    __shared__ float sums[16][16];
    int x = threadIdx.x, y = threadIdx.y;
    sums[y][x] = 0;
    __syncthreads();
    for (int i = 0; i < 16; ++i) {
        int row = blockIdx.y * 16 + i, column = blockIdx.x * 16 + x;
        if (row >= m || column >= n) continue;
        float part = 0;
        for (int t = y; t < k; t += 16) part += __half2float(a[(size_t)row * k + t]) * __half2float(b[(size_t)t * n + column]);
        atomicAdd(&sums[i][x], part);
    }
    __syncthreads();
    int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    if (row < m && column < n) c[(size_t)row * n + column] = sums[y][x];
}
