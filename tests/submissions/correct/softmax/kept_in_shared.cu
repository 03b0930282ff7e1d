// gpulab: exercise=softmax
// gpulab: block=64 grid=rows shared=4*cols
//
// Exponentials are computed once and wait in shared memory; the sum is added by atomics.
#include <cuda_fp16.h>

extern "C" __global__ void softmax(const __half* x, __half* y, int rows, int cols) {
    extern __shared__ float kept[];
    __shared__ float part[2], total;
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    float largest = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 64) {
        kept[i] = __half2float(x[i]);
        largest = fmaxf(largest, kept[i]);
    }
    for (int s = 16; s > 0; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    if (threadIdx.x == 0) total = 0.0f;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = fmaxf(part[0], part[1]);
    for (int i = threadIdx.x; i < cols; i += 64) {
        kept[i] = __expf(kept[i] - largest);
        sum += kept[i];
    }
    atomicAdd(&total, sum);
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += 64) y[i] = __float2half(kept[i] / total);
}
