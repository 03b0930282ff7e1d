// gpulab: exercise=bf16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
//
// C (m, n) = A (m, k) B (k, n), row-major, float accumulator.
// This file compiles and runs, but it sums only the first tile of k. Make it right.
#include <cuda_bf16.h>

#define TILE 16

extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int m, int n, int k) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    // Your work: walk along k in steps of TILE.
    int t = 0;
    tile_a[y][x] = row < m && t + x < k ? __bfloat162float(a[(size_t)row * k + t + x]) : 0.0f;
    tile_b[y][x] = t + y < k && column < n ? __bfloat162float(b[(size_t)(t + y) * n + column]) : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
    __syncthreads();
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
