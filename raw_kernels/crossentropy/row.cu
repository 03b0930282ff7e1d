// loss (rows) = lse - x[label], lse (rows) = max + log(sum(e^(x - max))) of each row of x (rows, cols).
//
// Idea: one pass over the logits that keeps a maximum and a scaled sum (common/logsum.cuh); nothing
// as wide as the row is written. loss is formed as (max - x[label]) + log(sum): the large parts cancel
// exactly before the logarithm is added. Results are float32.
//
// A row whose label is ignore_index has loss 0. A label outside 0 .. cols - 1 gives NaN and reads nothing.
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/ahead.cuh"
#include "common/logsum.cuh"

template <typename T, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    crossentropy_row(const T* __restrict__ x, const int* __restrict__ labels,
                     float* __restrict__ loss, float* __restrict__ lse, int rows, int cols,
                     int ignore_index) {
    cluster_begin();
    typename Hold::template Rows<Plain<T, kVec>> row({x}, rows, cols);
    cluster_ready();
    for (; row.more(); row.next()) {
        const bool writes = row.inside() && row.member == 0;
        const int label = writes ? labels[row.row] : 0;
        const bool valid = label >= 0 && label < cols;
        const float target = writes && valid ? to_float(x[size_t(row.row) * cols + label]) : not_a_number();

        LogSum total = nothing();
        row.once([&](const float(&value)[kVec], int, int) { take(total, value); });
        total = row_reduce<0>(row, total, Merge{});
        if (writes) {
            const float log_sum = logf(total.sum);
            lse[row.row] = total.largest + log_sum;
            loss[row.row] = label == ignore_index ? 0.0f : (total.largest - target) + log_sum;
        }
    }
}
