// gpulab: exercise=fp16-matmul
// gpulab: block=32,8 grid=n,ceil(m/8) shared=0
#include <cuda_fp16.h>

// Each warp computes one element: its lanes take every 32nd term and add up by shuffles.
extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x;
    float sum = 0.0f;
    if (row < m) {
        for (int t = threadIdx.x; t < k; t += 32) {
            sum += __half2float(a[(size_t)row * k + t]) * __half2float(b[(size_t)t * n + column]);
        }
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (row < m && threadIdx.x == 0) c[(size_t)row * n + column] = sum;
}
