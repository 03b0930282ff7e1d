// A lesson, wrong on purpose: the logarithm of a softmax.
//
// A probability below 2^-149 is 0 and its logarithm -inf, where x - max - log(sum) is an ordinary number;
// above, the rounding of a small probability becomes an absolute error of the logarithm. Caught on `high`
// and `low`, whose gaps exceed 104.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    logsoftmax_log_of_softmax(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    const float largest = largest_of(row, cols);
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += exp_of(to_float(row[c]) - largest); });
    sum = over_row(sum, Add{});
    for_columns(cols, [&](int c) {
        out[c] = from_acc<T>(logf(exp_of(to_float(row[c]) - largest) / sum));
    });
}
