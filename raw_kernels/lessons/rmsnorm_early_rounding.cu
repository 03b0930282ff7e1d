// A lesson, wrong on purpose: the residual sum is rounded before it is normalised, under the contract
// `fp32-sum`.
//
// The stored residual is right bit for bit, and the results look right: a comparison within 1e-2 passes
// them. One in five or six differs in its last place, which is what a change of contract looks like.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    rmsnorm_early_rounding(const T* __restrict__ x, const T* __restrict__ residual,
                           const T* __restrict__ weight, T* __restrict__ y,
                           T* __restrict__ residual_out, int rows, int cols, float eps) {
    const size_t start = size_t(blockIdx.x) * cols;
    float sum = 0.0f;
    const auto rounded = [&](int c) {
        return from_acc<T>(to_float(x[start + c]) + to_float(residual[start + c]));
    };
    for_columns(cols, [&](int c) {
        residual_out[start + c] = rounded(c);
        const float value = to_float(rounded(c));
        sum = fmaf(value, value, sum);
    });
    const float rstd = 1.0f / sqrtf(over_row(sum, Add{}) / cols + eps);
    for_columns(cols, [&](int c) {
        const T normal = from_acc<T>(to_float(rounded(c)) * rstd);
        y[start + c] = from_acc<T>(to_float(normal) * to_float(weight[c]));
    });
}
