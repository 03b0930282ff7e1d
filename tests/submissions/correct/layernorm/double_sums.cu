// gpulab: exercise=layernorm
// gpulab: block=32 grid=rows
//
// Mean and variance in double: no shift is needed.
extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias,
                                     float* y, int rows, int cols, float eps) {
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    double sum = 0.0, squares = 0.0;
    for (int i = threadIdx.x; i < cols; i += 32) sum += x[i];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    double mean = sum / cols;
    for (int i = threadIdx.x; i < cols; i += 32) squares += (x[i] - mean) * (x[i] - mean);
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    double rstd = 1.0 / sqrt(squares / cols + eps);
    for (int i = threadIdx.x; i < cols; i += 32) {
        y[i] = (float)((x[i] - mean) * rstd * weight[i] + bias[i]);
    }
}
