// Softmax as plain as the lessons, and right: what a lesson's stabilisation costs is the difference to
// one of these, which do all else as the lesson does.
//   softmax_plain         the maximum first, then the sum of exponentials
//   softmax_plain_online  both in one pass, the sum rescaled when the maximum grows
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    softmax_plain(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    const float largest = largest_of(row, cols);
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += exp_of(to_float(row[c]) - largest); });
    sum = over_row(sum, Add{});
    for_columns(cols, [&](int c) { out[c] = from_acc<T>(exp_of(to_float(row[c]) - largest) / sum); });
}

template <typename T>
__global__ void __launch_bounds__(kLanes)
    softmax_plain_online(const T* __restrict__ x, T* __restrict__ y, int rows, int cols) {
    const T* row = x + size_t(blockIdx.x) * cols;
    T* out = y + size_t(blockIdx.x) * cols;
    LogSum seen = nothing();
    for_columns(cols, [&](int c) {
        const float value[1] = {to_float(row[c])};
        take(seen, value);
    });
    seen = over_row(seen, Merge{});
    for_columns(cols, [&](int c) {
        out[c] = from_acc<T>(exp_of(to_float(row[c]) - seen.largest) / seen.sum);
    });
}
