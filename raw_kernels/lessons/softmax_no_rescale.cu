// A lesson, wrong on purpose: an online softmax that is never rescaled.
//
// When a larger maximum comes, what was summed relative to the old one must be multiplied by
// e^(old - new). Without that, early elements weigh too much. Worst on `ascending`, where the maximum
// comes last; invisible where it comes first.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    softmax_no_rescale(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    LogSum seen = nothing();
    for_columns(cols, [&](int c) {
        const float value = to_float(row[c]);
        seen.largest = fmaxf(seen.largest, value);
        seen.sum += exp_of(value - base_of(seen.largest));
    });
    seen = over_row(seen, Merge{});
    for_columns(cols, [&](int c) {
        out[c] = from_acc<T>(exp_of(to_float(row[c]) - seen.largest) / seen.sum);
    });
}
