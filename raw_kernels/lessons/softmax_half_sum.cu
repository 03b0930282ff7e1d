// A lesson, wrong on purpose: softmax whose running sum is kept in the storage type.
//
// Every term is rounded to the bits of the sum so far: 11 in fp16, 8 in bf16. All results of a row are
// off by the same factor. Caught on every family by the interval; a comparison within 1e-3 sees nothing,
// since probabilities are small numbers.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    softmax_half_sum(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    const float largest = largest_of(row, cols);
    Running<T> running;
    for_columns(cols, [&](int c) { running.add(exp_of(to_float(row[c]) - largest)); });
    const float sum = running.total();
    for_columns(cols, [&](int c) { out[c] = from_acc<T>(exp_of(to_float(row[c]) - largest) / sum); });
}
