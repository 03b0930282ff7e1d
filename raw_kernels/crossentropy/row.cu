// loss (rows) = lse - x[label], lse (rows) = max + log(sum(e^(x - max))) of each row of x (rows, cols).
//
// Idea: one pass over the logits that keeps a maximum and a scaled sum (common/logsum.cuh); nothing
// as wide as the row is written. loss is formed as (max - x[label]) + log(sum): the large parts cancel
// exactly before the logarithm is added. Results are float32.
//
// A row whose label is ignore_index has loss 0. A label outside 0 .. cols - 1 gives NaN and reads nothing.
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/logsum.cuh"
#include "common/row.cuh"

template <typename T, int kVec, int kGroup, int kRows>
__global__ void __launch_bounds__(kGroup* kRows) GPULAB_CLUSTER_DIMS
    crossentropy_row(const T* __restrict__ x, const int* __restrict__ labels,
                     float* __restrict__ loss, float* __restrict__ lse, int rows, int cols,
                     int ignore_index) {
    using Where = Place<kGroup, kRows>;
    cluster_begin();
    const Where where(rows);
    const T* start = x + where.row * cols;
    Row<Plain<T, kVec>, kGroup * kRows, Where::kTeam, 0, 0> row(
        {start}, where.member, where.inside ? unsigned(cols) / kVec : 0u);

    const bool writes = where.inside && where.member == 0;
    const int label = writes ? labels[where.row] : 0;
    const bool valid = label >= 0 && label < cols;
    const float target = writes && valid ? to_float(start[label]) : not_a_number();

    const LogSum total = Online::of<kGroup>(row);
    if (writes) {
        const float log_sum = logf(total.sum);
        lse[where.row] = total.largest + log_sum;
        loss[where.row] = label == ignore_index ? 0.0f : (total.largest - target) + log_sum;
    }
}
