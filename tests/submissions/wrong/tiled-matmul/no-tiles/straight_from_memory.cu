// gpulab: exercise=tiled-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < m && column < n) {
        float sum = 0.0f;
        for (int t = 0; t < k; ++t) sum += a[(size_t)row * k + t] * b[(size_t)t * n + column];
        c[(size_t)row * n + column] = sum;
    }
}
