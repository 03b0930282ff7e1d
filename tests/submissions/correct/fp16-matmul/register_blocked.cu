// gpulab: exercise=fp16-matmul
// gpulab: block=8,8 grid=ceil(n/32),ceil(m/32) shared=0
#include <cuda_fp16.h>

extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * 32 + threadIdx.y * 4, column = blockIdx.x * 32 + threadIdx.x * 4;
    float sum[4][4] = {};
    for (int t = 0; t < k; ++t) {
        float left[4], right[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            left[i] = row + i < m ? __half2float(a[(size_t)(row + i) * k + t]) : 0.0f;
            right[i] = column + i < n ? __half2float(b[(size_t)t * n + column + i]) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (row + i < m && column + j < n) c[(size_t)(row + i) * n + column + j] = sum[i][j];
        }
    }
}
