// gpulab: exercise=dequant-int4
// gpulab: block=32,8 grid=ceil(n/32),ceil(m/8) shared=0
//
// C (m, n) = A (m, k) W (k, n), int4 weights with a half scale for each group of rows: tiles of 32
// rows of W are unpacked into shared memory once for 8 rows of A.
#include <cuda_fp16.h>

#define ROWS 8
#define COLUMNS 32
#define TERMS 32

extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w,
                                       const __half* scales, float* c, int m, int n, int k,
                                       int group) {
    __shared__ float tile_a[ROWS][TERMS];
    __shared__ float tile_w[TERMS][COLUMNS];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * ROWS + y, column = blockIdx.x * COLUMNS + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += TERMS) {
        bool inside = row < m && t + x < k;
        tile_a[y][x] = inside ? __half2float(a[(size_t)row * k + t + x]) : 0.0f;
        for (int i = 2 * y; i < TERMS; i += 2 * ROWS) {  // a byte holds two rows of one group
            float low = 0.0f, high = 0.0f;
            if (t + i < k && column < n) {
                unsigned byte = w[(size_t)((t + i) / 2) * n + column];
                float scale = __half2float(scales[(size_t)((t + i) / group) * n + column]);
                low = ((int)(byte << 28) >> 28) * scale;
                high = ((signed char)byte >> 4) * scale;
            }
            tile_w[i][x] = low;
            tile_w[i + 1][x] = t + i + 1 < k ? high : 0.0f;
        }
        __syncthreads();
        for (int i = 0; i < TERMS; ++i) sum += tile_a[y][i] * tile_w[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
