// gpulab: exercise=dequant-int4
// gpulab: block=32,4 grid=ceil(n/32),ceil(m/4) shared=0
//
// A thread a result: the sum of each group in float, then one multiplication by its scale; groups
// from the last to the first.
#include <cuda_fp16.h>

extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w,
                                       const __half* scales, float* c, int m, int n, int k,
                                       int group) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    const __half* mine = a + (size_t)row * k;
    float sum = 0.0f;
    for (int first = (k - 1) / group * group; first >= 0; first -= group) {
        float part = 0.0f;
        for (int t = first; t < min(k, first + group); t += 2) {
            unsigned byte = w[(size_t)(t / 2) * n + column];
            part += __half2float(mine[t]) * ((int)(byte << 28) >> 28);
            if (t + 1 < k) part += __half2float(mine[t + 1]) * ((signed char)byte >> 4);
        }
        sum += part * __half2float(scales[(size_t)(first / group) * n + column]);
    }
    c[(size_t)row * n + column] = sum;
}
