// A lesson, wrong on purpose: cross entropy as -log of a softmax.
//
// A label whose probability underflows costs +inf instead of max - x[label] + log(sum). Caught on `high`
// and `low`.
#include "lessons/row.cuh"

template <typename T>
__global__ void __launch_bounds__(kLanes)
    crossentropy_log_of_softmax(const T* __restrict__ x, const int* __restrict__ labels,
                                float* __restrict__ loss, float* __restrict__ lse, int rows, int cols,
                                int ignore_index) {
    const T* row = x + size_t(blockIdx.x) * cols;
    const float largest = largest_of(row, cols);
    float sum = 0.0f;
    for_columns(cols, [&](int c) { sum += exp_of(to_float(row[c]) - largest); });
    sum = over_row(sum, Add{});
    if (threadIdx.x == 0) {
        const int label = labels[blockIdx.x];
        const bool valid = label >= 0 && label < cols;
        const float probability =
            valid ? exp_of(to_float(row[label]) - largest) / sum : not_a_number();
        lse[blockIdx.x] = largest + logf(sum);
        loss[blockIdx.x] = label == ignore_index ? 0.0f : -logf(probability);
    }
}
