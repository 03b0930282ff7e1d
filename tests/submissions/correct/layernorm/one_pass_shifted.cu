// gpulab: exercise=layernorm
// gpulab: block=64 grid=rows
//
// Sums of x - x[0] and of its squares in one pass.
extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias,
                                     float* y, int rows, int cols, float eps) {
    __shared__ float total[2];
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    if (threadIdx.x < 2) total[threadIdx.x] = 0.0f;
    __syncthreads();
    float first = x[0], sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 64) {
        float d = x[i] - first;
        sum += d;
        squares += d * d;
    }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        squares += __shfl_xor_sync(~0u, squares, step);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&total[0], sum);
        atomicAdd(&total[1], squares);
    }
    __syncthreads();
    float mean = total[0] / cols;
    float variance = total[1] / cols - mean * mean;
    if (variance < 0.0f) variance = 0.0f;  // fmaxf would lose a NaN
    float rstd = rsqrtf(variance + eps);
    for (int i = threadIdx.x; i < cols; i += 64) {
        y[i] = (x[i] - first - mean) * rstd * weight[i] + bias[i];
    }
}
