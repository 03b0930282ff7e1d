// gpulab: exercise=log-softmax
// gpulab: block=32 grid=rows
//
// A warp a row, maximum and sum in one pass.
extern "C" __global__ void log_softmax(const float* x, float* y, int rows, int cols) {
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    float m = -FLT_MAX, s = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32) {
        float larger = fmaxf(m, x[i]);
        s = s * expf(m - larger) + expf(x[i] - larger);
        m = larger;
    }
    for (int step = 16; step > 0; step /= 2) {
        float om = __shfl_xor_sync(~0u, m, step), os = __shfl_xor_sync(~0u, s, step);
        float larger = fmaxf(m, om);
        s = s * expf(m - larger) + os * expf(om - larger);
        m = larger;
    }
    // Nothing but -inf: s is 0, its logarithm -inf, and the result must be NaN.
    float log_sum = s > 0.0f ? logf(s) : NAN;
    for (int i = threadIdx.x; i < cols; i += 32) y[i] = (x[i] - m) - log_sum;
}
