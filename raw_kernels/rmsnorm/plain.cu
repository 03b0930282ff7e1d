// RMSNorm as plain as the lessons, and right.
//   rmsnorm_plain           the sum of squares in float32
//   rmsnorm_plain_residual  x + residual in float32 for variance and normalisation (fp32-sum)
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    rmsnorm_plain(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, int rows,
                  int cols, float eps) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    float sum = 0.0f;
    for_columns(cols, [&](int c) {
        const float value = to_float(row[c]);
        sum = fmaf(value, value, sum);
    });
    const float rstd = 1.0f / sqrtf(over_row(sum, Add{}) / cols + eps);
    for_columns(cols, [&](int c) {
        const T normal = from_acc<T>(to_float(row[c]) * rstd);
        out[c] = from_acc<T>(to_float(normal) * to_float(weight[c]));
    });
}

template <typename T>
__global__ void __launch_bounds__(kLanes)
    rmsnorm_plain_residual(const T* __restrict__ x, const T* __restrict__ residual,
                           const T* __restrict__ weight, T* __restrict__ y,
                           T* __restrict__ residual_out, int rows, int cols, float eps) {
    const size_t start = size_t(blockIdx.x) * cols;
    float sum = 0.0f;
    const auto added = [&](int c) {
        return to_float(x[start + c]) + to_float(residual[start + c]);
    };
    for_columns(cols, [&](int c) {
        const float value = added(c);
        residual_out[start + c] = from_acc<T>(value);
        sum = fmaf(value, value, sum);
    });
    const float rstd = 1.0f / sqrtf(over_row(sum, Add{}) / cols + eps);
    for_columns(cols, [&](int c) {
        const T normal = from_acc<T>(added(c) * rstd);
        y[start + c] = from_acc<T>(to_float(normal) * to_float(weight[c]));
    });
}
