// gpulab: exercise=layernorm
// gpulab: block=32,8 grid=ceil(rows/8)
//
// Pairwise sums by a recursive template, shifted by the middle element, the mean in two steps.
template <int N> __device__ __forceinline__ float tree(const float* v) {
    if constexpr (N == 1) return v[0];
    else return tree<N / 2>(v) + tree<N - N / 2>(v + N / 2);
}
extern "C" __global__ void __launch_bounds__(256, 1) layernorm(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ y, int rows, int cols, float eps) {
    int lane = threadIdx.x, row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    x += (size_t)row * cols;
    y += (size_t)row * cols;
    float shift = x[cols / 2], mean = 0.0f;
    for (int pass = 0; pass < 2; ++pass) {
        float total = 0.0f;
        for (int i = lane; i < cols; i += 128) {
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) v[j] = i + 32 * j < cols ? x[i + 32 * j] - shift - mean : 0.0f;
            total += tree<4>(v);
        }
#pragma unroll
        for (int s = 1; s < 32; s <<= 1) total += __shfl_xor_sync(~0u, total, s);
        mean += total / cols;
    }
    float squares = 0.0f;
    for (int i = lane; i < cols; i += 32) { float d = x[i] - shift - mean; squares = __fmaf_rn(d, d, squares); }
    for (int s = 1; s < 32; s <<= 1) squares += __shfl_xor_sync(~0u, squares, s);
    float rstd = __frsqrt_rn(__fdiv_rn(squares, cols) + eps);
    for (int i = lane; i < cols; i += 32) y[i] = __fmaf_rn((x[i] - shift - mean) * rstd, weight[i], bias[i]);
}
