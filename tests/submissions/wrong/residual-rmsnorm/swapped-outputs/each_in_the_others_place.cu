// gpulab: exercise=residual-rmsnorm
// gpulab: block=128 grid=rows shared=0
//
// Each of the two results is stored where the other belongs: a block a row.
#include <cuda_fp16.h>

#define THREADS 128

// The sum over all threads of the block, in every thread.
__device__ float block_sum(float value) {
    __shared__ float part[THREADS / 32];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < THREADS / 32; ++i) total += part[i];
    __syncthreads();
    return total;
}

extern "C" __global__ void residual_rmsnorm(const __half* x, const __half* residual,
                                            const __half* weight, __half* y, __half* residual_out,
                                            int rows, int cols, float eps) {
    size_t start = (size_t)blockIdx.x * cols;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += THREADS) {
        float sum = __half2float(x[start + i]) + __half2float(residual[start + i]);
        squares += sum * sum;
        y[start + i] = __float2half(sum);
    }
    float rstd = rsqrtf(block_sum(squares) / cols + eps);

    for (int i = threadIdx.x; i < cols; i += THREADS) {
        float sum = __half2float(x[start + i]) + __half2float(residual[start + i]);
        __half normalised = __float2half(sum * rstd);
        residual_out[start + i] =
            __float2half(__half2float(normalised) * __half2float(weight[i]));
    }
}
