// gpulab: exercise=tiled-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
//
// C (m, n) = A (m, k) B (k, n), row-major, in float32.
// This file compiles and runs, but it sums every element's first 16 terms only, straight from
// global memory. Make it right, then make it read each element of A and B once a tile.

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < m && column < n) {
        float sum = 0.0f;
        // Your work: the whole of k, tile by tile, through __shared__ arrays.
        for (int t = 0; t < min(k, 16); ++t) sum += a[row * k + t] * b[t * n + column];
        c[row * n + column] = sum;
    }
}
