// gpulab: exercise=dequant-int4
// gpulab: block=32 grid=ceil(n/64),m
#include <cuda_fp16.h>
// Two columns a thread; halves by bit tricks (1024 + code), exact; group sums in float.
extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w, const __half* scales, float* c, int m, int n, int k, int group) {
    int row = blockIdx.y, col = (blockIdx.x * 32 + threadIdx.x) * 2;
    if (col >= n) return;
    bool two = col + 1 < n;
    float total[2] = {0, 0};
    for (int g = 0; g * group < k; ++g) {
        float sum[2] = {0, 0};
        for (int t = g * group; t < min(k, (g + 1) * group); t += 2) {
            unsigned raw = w[(size_t)(t / 2) * n + col] | (two ? w[(size_t)(t / 2) * n + col + 1] << 8 : 0);
            raw ^= 0x8888;
            float a0 = __half2float(a[(size_t)row * k + t]), a1 = t + 1 < k ? __half2float(a[(size_t)row * k + t + 1]) : 0.0f;
            for (int j = 0; j < 2; ++j) {
                unsigned byte = raw >> 8 * j & 0xff, packed = __byte_perm(byte & 15, byte >> 4, 0x5410) | 0x64006400u;
                __half2 q = __hsub2(reinterpret_cast<__half2&>(packed), __half2half2(__float2half(1032.0f)));
                sum[j] = fmaf(a0, __low2float(q), sum[j]);
                sum[j] = fmaf(a1, t + 1 < k ? __high2float(q) : 0.0f, sum[j]);
            }
        }
        for (int j = 0; j < 1 + two; ++j) total[j] = fmaf(sum[j], __half2float(scales[(size_t)g * n + col + j]), total[j]);
    }
    for (int j = 0; j < 1 + two; ++j) c[(size_t)row * n + col + j] = total[j];
}
