// gpulab: exercise=bf16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
//
#include <cuda_bf16.h>

#define TILE 16

extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int m, int n, int k) {
    __shared__ __nv_bfloat16 tile_a[TILE][TILE];
    __shared__ __nv_bfloat16 tile_b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += TILE) {
        tile_a[y][x] = row < m && t + x < k ? a[(size_t)row * k + t + x] : __float2bfloat16(0.0f);
        tile_b[y][x] = t + y < k && column < n ? b[(size_t)(t + y) * n + column] : __float2bfloat16(0.0f);
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum = __bfloat162float(__float2bfloat16(sum + __bfloat162float(tile_a[y][i]) * __bfloat162float(tile_b[i][x])));
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
