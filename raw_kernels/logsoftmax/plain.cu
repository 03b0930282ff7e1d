// Log-softmax as plain as the lesson, and right: the logarithm of the sum, not of a probability.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    logsoftmax_plain(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    const float largest = largest_of(row, cols);
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += exp_of(to_float(row[c]) - largest); });
    const float log_sum = logf(over_row(sum, Add{}));
    for_columns(cols, [&](int c) { out[c] = from_acc<T>((to_float(row[c]) - largest) - log_sum); });
}
