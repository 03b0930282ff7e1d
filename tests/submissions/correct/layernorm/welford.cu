// gpulab: exercise=layernorm
// gpulab: block=32 grid=rows
//
// Welford's running mean and squares in every lane, merged by Chan's formula.
extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias,
                                     float* y, int rows, int cols, float eps) {
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    float first = x[0], count = 0.0f, mean = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32) {
        float d = x[i] - first, delta = d - mean;
        count += 1.0f;
        mean += delta / count;
        squares += delta * (d - mean);
    }
    for (int step = 16; step > 0; step /= 2) {
        float n = __shfl_xor_sync(~0u, count, step), m = __shfl_xor_sync(~0u, mean, step);
        float s = __shfl_xor_sync(~0u, squares, step);
        // Both partners must compute the same: the lower lane's part comes first.
        bool low = (threadIdx.x & step) == 0;
        float na = low ? count : n, nb = low ? n : count;
        float ma = low ? mean : m, mb = low ? m : mean;
        float sa = low ? squares : s, sb = low ? s : squares;
        float all = na + nb, delta = mb - ma;
        if (all > 0.0f) {
            mean = ma + delta * (nb / all);
            squares = sa + sb + delta * delta * (na * nb / all);
        }
        count = all;
    }
    float rstd = rsqrtf(squares / cols + eps);
    for (int i = threadIdx.x; i < cols; i += 32) {
        y[i] = (x[i] - first - mean) * rstd * weight[i] + bias[i];
    }
}
