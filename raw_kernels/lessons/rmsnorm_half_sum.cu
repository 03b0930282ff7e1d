// A lesson, wrong on purpose: RMSNorm whose sum of squares is kept in the storage type.
//
// Every square is rounded to the bits of the sum so far, and a long sum stands still: in bf16 at 256 times
// a term. Caught on every family.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    rmsnorm_half_sum(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, int rows,
                     int cols, float eps) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    Running<T> running;
    for_columns(cols, [&](int c) {
        const float value = to_float(row[c]);
        running.add(value * value);
    });
    const float rstd = 1.0f / sqrtf(running.total() / cols + eps);
    for_columns(cols, [&](int c) {
        const T normal = from_acc<T>(to_float(row[c]) * rstd);
        out[c] = from_acc<T>(to_float(normal) * to_float(weight[c]));
    });
}
