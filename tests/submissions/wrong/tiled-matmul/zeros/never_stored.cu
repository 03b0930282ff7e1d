// gpulab: exercise=tiled-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
//

#define TILE 16

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += TILE) {
        tile_a[y][x] = row < m && t + x < k ? a[(size_t)row * k + t + x] : 0.0f;
        tile_b[y][x] = t + y < k && column < n ? b[(size_t)(t + y) * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = 0.0f;
}
