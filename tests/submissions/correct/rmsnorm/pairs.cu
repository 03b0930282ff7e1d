// gpulab: exercise=rmsnorm
// gpulab: block=64 grid=rows
//
// Two elements a load where the row allows it, the sum through shared memory and atomics.
#include <cuda_fp16.h>

extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows,
                                   int cols, float eps) {
    __shared__ float total;
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    float squares = 0.0f;
    int pairs = cols % 2 == 0 ? cols / 2 : 0;
    for (int i = threadIdx.x; i < pairs; i += 64) {
        float2 value = __half22float2(((const __half2*)x)[i]);
        squares += value.x * value.x + value.y * value.y;
    }
    for (int i = 2 * pairs + threadIdx.x; i < cols; i += 64) {
        squares += __half2float(x[i]) * __half2float(x[i]);
    }
    atomicAdd(&total, squares);
    __syncthreads();
    float rstd = rsqrtf(total / cols + eps);
    for (int i = threadIdx.x; i < cols; i += 64) {
        __half normalised = __float2half_rn(__half2float(x[i]) * rstd);
        y[i] = __float2half_rn(__half2float(normalised) * __half2float(weight[i]));
    }
}
