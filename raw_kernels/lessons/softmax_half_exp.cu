// A lesson, wrong on purpose: softmax whose exponentials are kept in the storage type.
//
// The sum is float32, but each term and each numerator is rounded before the division rounds again: one
// result in four or five is off by a unit in the last place. Caught on every family by the interval.
#include "lessons/row.cuh"

template <typename T>
float rounded_exp(float d) {
    return to_float(from_acc<T>(exp_of(d)));
}

template <typename T>
__global__ void __launch_bounds__(kLanes)
    softmax_half_exp(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    const float largest = largest_of(row, cols);
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += rounded_exp<T>(to_float(row[c]) - largest); });
    sum = over_row(sum, Add{});
    for_columns(cols, [&](int c) {
        out[c] = from_acc<T>(rounded_exp<T>(to_float(row[c]) - largest) / sum);
    });
}
