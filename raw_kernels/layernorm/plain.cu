// LayerNorm as plain as the lesson, and right: a first mean, then sums of what is left.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    layernorm_plain(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                    T* __restrict__ y, int rows, int cols, float eps) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += to_float(row[c]); });
    const float shift = over_row(sum, Add{}) / cols;
    float left = 0.0f, squares = 0.0f;
    for_columns(cols, [&](int c) {
        const float d = to_float(row[c]) - shift;
        left += d;
        squares = fmaf(d, d, squares);
    });
    const float mean = over_row(left, Add{}) / cols;
    const float variance = over_row(squares, Add{}) / cols - mean * mean;
    const float rstd = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps);
    for_columns(cols, [&](int c) {
        const float normal = (to_float(row[c]) - shift - mean) * rstd;
        out[c] = from_acc<T>(fmaf(normal, to_float(weight[c]), to_float(bias[c])));
    });
}
