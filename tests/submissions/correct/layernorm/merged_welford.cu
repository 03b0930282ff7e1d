// gpulab: exercise=layernorm
// gpulab: block=256 grid=min(rows,40)
// Welford's update in every thread, Chan's merge across lanes and warps; persistent.
struct Moments { float n, mean, m2; };
__device__ Moments operator+(Moments a, Moments b) {
    float n = a.n + b.n;
    if (n == 0) return a;
    float d = b.mean - a.mean, w = b.n / n;
    return {n, a.mean + d * w, a.m2 + b.m2 + d * d * a.n * w};
}
extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias, float* y, int rows, int cols, float eps) {
    __shared__ Moments part[8];
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const float* p = x + (size_t)r * cols;
        float first = p[0];
        Moments m = {0, 0, 0};
        for (int i = threadIdx.x; i < cols; i += 256) {
            float d = (p[i] - first) - m.mean;
            m.n += 1; m.mean += d / m.n; m.m2 += d * ((p[i] - first) - m.mean);
        }
        for (int s = 16; s; s /= 2) {
            Moments o = {__shfl_xor_sync(~0u, m.n, s), __shfl_xor_sync(~0u, m.mean, s), __shfl_xor_sync(~0u, m.m2, s)};
            m = threadIdx.x & s ? o + m : m + o;
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
        __syncthreads();
        m = part[0];
        for (int i = 1; i < 8; ++i) m = m + part[i];
        float rstd = rsqrtf(m.m2 / cols + eps);
        for (int i = threadIdx.x; i < cols; i += 256) y[(size_t)r * cols + i] = ((p[i] - first) - m.mean) * rstd * weight[i] + bias[i];
    }
}
