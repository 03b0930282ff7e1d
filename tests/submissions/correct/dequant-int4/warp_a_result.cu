// gpulab: exercise=dequant-int4
// gpulab: block=128 grid=ceil(m*n/4) shared=0
//
// A warp a result: lanes share the bytes of a column, and their sums meet at the end.
#include <cuda_fp16.h>

extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w,
                                       const __half* scales, float* c, int m, int n, int k,
                                       int group) {
    int result = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (result >= m * n) return;
    int row = result / n, column = result % n;
    float sum = 0.0f;
    for (int p = lane; 2 * p < k; p += 32) {
        int byte = w[(size_t)p * n + column];
        float scale = __half2float(scales[(size_t)(2 * p / group) * n + column]);
        float low = ((byte & 15) - 2 * (byte & 8)) * scale, high = ((byte >> 4) - (byte >> 7) * 16) * scale;
        sum = fmaf(__half2float(a[(size_t)row * k + 2 * p]), low, sum);
        if (2 * p + 1 < k) sum = fmaf(__half2float(a[(size_t)row * k + 2 * p + 1]), high, sum);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (lane == 0) c[result] = sum;
}
