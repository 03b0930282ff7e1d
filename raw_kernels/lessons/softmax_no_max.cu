// A lesson, wrong on purpose: softmax without the maximum.
//
// e^x overflows float32 from x = 88.8 on and is 0 below -103: the quotient is then inf / inf or 0 / 0.
// Caught on `high` and `low`; on N(0, 1) it is right, and so passes every test that knows nothing else.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    softmax_no_max(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += exp_of(to_float(row[c])); });
    sum = over_row(sum, Add{});
    for_columns(cols, [&](int c) { out[c] = from_acc<T>(exp_of(to_float(row[c])) / sum); });
}
