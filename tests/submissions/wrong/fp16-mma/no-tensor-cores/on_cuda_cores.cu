// gpulab: exercise=fp16-mma
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
#include <cuda_fp16.h>

extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < m && column < n) {
        float sum = 0.0f;
        for (int t = 0; t < k; ++t) sum += __half2float(a[(size_t)row * k + t]) * __half2float(b[(size_t)t * n + column]);
        c[(size_t)row * n + column] = sum;
    }
}
