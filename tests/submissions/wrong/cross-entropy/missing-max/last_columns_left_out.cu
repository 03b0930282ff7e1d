// gpulab: exercise=cross-entropy
// gpulab: block=128 grid=rows shared=0
//
// The maximum is that of whole vectors of 8 columns; the sum sees the others too.
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

extern "C" __global__ void cross_entropy(const __half* x, const int* labels, float* loss,
                                         float* lse, int rows, int cols, int ignore_index) {
    const __half* row = x + (size_t)blockIdx.x * cols;

    // Not -INFINITY: in a row of nothing but -inf, x - largest shall be -inf and not NaN.
    float largest = -FLT_MAX;
    for (int i = threadIdx.x; i < (cols < 8 ? cols : cols / 8 * 8); i += THREADS) {
        largest = fmaxf(largest, __half2float(row[i]));
    }
    largest = block_max(largest);

    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += THREADS) sum += expf(__half2float(row[i]) - largest);
    float log_sum = logf(block_sum(sum));

    if (threadIdx.x == 0) {
        int label = labels[blockIdx.x];
        float found = 0.0f;
        if (label != ignore_index) {
            bool inside = 0 <= label && label < cols;
            found = inside ? (largest - __half2float(row[label])) + log_sum : NAN;
        }
        loss[blockIdx.x] = found;
        lse[blockIdx.x] = largest + log_sum;
    }
}
