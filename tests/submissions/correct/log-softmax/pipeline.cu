// gpulab: exercise=log-softmax
// gpulab: block=128 grid=rows shared=4*min(cols,1024)
#include <cuda_pipeline.h>
extern "C" __global__ void log_softmax(const float* x, float* y, int rows, int cols) {
    extern __shared__ float kept[];
    __shared__ float part[8];
    const float* row = x + (size_t)blockIdx.x * cols;
    int held = min(cols, 1024), t = threadIdx.x;
    for (int i = t; i < held; i += 128) __pipeline_memcpy_async(kept + i, row + i, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    auto at = [&](int i) { return i < held ? kept[i] : row[i]; };
    float top = -FLT_MAX, sum = 0;
    for (int i = t; i < cols; i += 128) top = fmaxf(top, at(i));
    for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_down_sync(~0u, top, s));
    if (t % 32 == 0) part[t / 32] = top;
    __syncthreads();
    top = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    for (int i = t; i < cols; i += 128) sum += expf(at(i) - top);
    for (int s = 16; s; s /= 2) sum += __shfl_down_sync(~0u, sum, s);
    if (t % 32 == 0) part[4 + t / 32] = sum;
    __syncthreads();
    float total = 0;
    for (int i = 4; i < 8; ++i) total += part[i];
    bool lost = top == -FLT_MAX && total == 0.0f;  // nothing but -inf
    float log_total = lost ? NAN : logf(total);
    for (int i = t; i < cols; i += 128) y[(size_t)blockIdx.x * cols + i] = (at(i) - top) - log_total;
}
