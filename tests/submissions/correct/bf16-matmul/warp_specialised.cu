// gpulab: exercise=bf16-matmul
// gpulab: block=96 grid=ceil(n/32),m
#include <cuda_bf16.h>
// warp 0 brings terms, warps 1 and 2 sum the even and the odd ones; named barriers between them
__device__ __forceinline__ void arrive(int id) { asm volatile("bar.arrive %0, 96;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void wait(int id) { asm volatile("bar.sync %0, 96;" ::"r"(id) : "memory"); }
extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int m, int n, int k) {
    __shared__ float tile[2][16][32], half_sum[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y, col = blockIdx.x * 32 + lane;
    int steps = (k + 15) / 16;
    if (warp == 0) {
        for (int s = 0; s < steps; ++s) {
            if (s >= 2) wait(3 + s % 2);  // free
            for (int i = 0; i < 16; ++i) {
                int t = s * 16 + i;
                tile[s % 2][i][lane] = t < k && col < n ? __bfloat162float(a[(size_t)row * k + t]) * __bfloat162float(b[(size_t)t * n + col]) : 0.0f;
            }
            arrive(1 + s % 2);  // full
        }
    } else {
        float sum = 0;
        for (int s = 0; s < steps; ++s) {
            wait(1 + s % 2);
            for (int i = warp - 1; i < 16; i += 2) sum += tile[s % 2][i][lane];
            if (s + 2 < steps) arrive(3 + s % 2);
        }
        if (warp == 2) half_sum[lane] = sum;
        asm volatile("bar.sync 5, 64;" ::: "memory");
        if (warp == 1 && col < n) c[(size_t)row * n + col] = sum + half_sum[lane];
    }
}
