// A lesson, wrong on purpose: the variance as E[x^2] - E[x]^2.
//
// Both are about mean^2; their difference keeps what float32 has left: with a mean of 1e4 and a standard
// deviation of 1 nothing, and the root of a negative number is NaN. Caught on `offset`.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    layernorm_naive_variance(const T* __restrict__ x, const T* __restrict__ weight,
                             const T* __restrict__ bias, T* __restrict__ y, int rows, int cols,
                             float eps) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    float sum = 0.0f, squares = 0.0f;
    for_columns(cols, [&](int c) {
        const float value = to_float(row[c]);
        sum += value;
        squares = fmaf(value, value, squares);
    });
    const float mean = over_row(sum, Add{}) / cols;
    const float variance = over_row(squares, Add{}) / cols - mean * mean;
    const float rstd = 1.0f / sqrtf(variance + eps);
    for_columns(cols, [&](int c) {
        const float normal = (to_float(row[c]) - mean) * rstd;
        out[c] = from_acc<T>(fmaf(normal, to_float(weight[c]), to_float(bias[c])));
    });
}
