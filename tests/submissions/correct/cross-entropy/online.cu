// gpulab: exercise=cross-entropy
// gpulab: block=64 grid=ceil(rows/2)
//
// A warp a row, maximum and sum in one pass, the last lane writes.
#include <cuda_fp16.h>

extern "C" __global__ void cross_entropy(const __half* x, const int* labels, float* loss,
                                         float* lse, int rows, int cols, int ignore_index) {
    int row = blockIdx.x * 2 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (size_t)row * cols;
    float m = -FLT_MAX, s = 0.0f;
    for (int i = lane; i < cols; i += 32) {
        float value = __half2float(x[i]), larger = fmaxf(m, value);
        s = s * expf(m - larger) + expf(value - larger);
        m = larger;
    }
    for (int step = 16; step > 0; step /= 2) {
        float om = __shfl_xor_sync(~0u, m, step), os = __shfl_xor_sync(~0u, s, step);
        float larger = fmaxf(m, om);
        s = s * expf(m - larger) + os * expf(om - larger);
        m = larger;
    }
    if (lane != 31) return;
    int label = labels[row];
    lse[row] = m + logf(s);
    if (label == ignore_index) loss[row] = 0.0f;
    else if ((unsigned)label >= (unsigned)cols) loss[row] = nanf("");
    else loss[row] = (m - __half2float(x[label])) + logf(s);
}
