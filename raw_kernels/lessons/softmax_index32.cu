// A lesson, wrong on purpose: a 32-bit offset of an element.
//
// row * cols wraps at 2^32 elements: later rows read and write the first ones again, their own results
// are never written. Nothing smaller shows it.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    softmax_index32(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const unsigned start = blockIdx.x * unsigned(cols);
    const float largest = largest_of(x + start, cols);
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += exp_of(to_float(x[start + c]) - largest); });
    sum = over_row(sum, Add{});
    for_columns(cols, [&](int c) {
        y[start + c] = from_acc<T>(exp_of(to_float(x[start + c]) - largest) / sum);
    });
}
