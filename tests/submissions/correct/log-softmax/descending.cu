// gpulab: exercise=log-softmax
// gpulab: block=64 grid=rows
//
// From the last column to the first, the sum by atomics.
extern "C" __global__ void log_softmax(const float* x, float* y, int rows, int cols) {
    __shared__ float part[2], total;
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    float m = -INFINITY, s = 0.0f;
    for (int i = cols - 1 - (int)threadIdx.x; i >= 0; i -= 64) m = fmaxf(m, x[i]);
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    m = fmaxf(part[0], part[1]);
    for (int i = cols - 1 - (int)threadIdx.x; i >= 0; i -= 64) s += __expf(x[i] - m);
    atomicAdd(&total, s);
    __syncthreads();
    float log_sum = log2f(total) * 0.69314718f;
    for (int i = threadIdx.x; i < cols; i += 64) y[i] = (x[i] - m) - log_sum;
}
