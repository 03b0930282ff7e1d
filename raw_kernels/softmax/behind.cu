// y (rows, cols) = e^(x - max) / sum(e^(x - max)) of each row; row-major.
//
// Idea: while a row is written, maximum and sum of the next one have been found and are on their way to
// the other blocks (common/behind.cuh). A thread goes over what it has of a row twice, for its own maximum
// and for the sum beside it (TwoPass), or once, rescaling the sum when the maximum grows (Online); the
// threads' sums are rescaled to the row's maximum. Everything is float32 until the one rounding to Out.
//
// A row without a finite maximum (all -inf, or a +inf in it) has no softmax: it gives NaN.
// Limits: packs of 16 bytes; a cluster of blocks; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/behind_logsum.cuh"

template <class Sum, typename T, typename Out, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    softmax_behind(const T* __restrict__ x, Out* __restrict__ y, int rows, int cols) {
    using Row = typename Hold::template Rows<T, LogSum>;
    Row row(x, rows, cols);
    row.ready();
    if (row.more()) send_next<Sum, T, true>(row);
    for (; row.more(); row.next()) {
        if (row.another()) send_next<Sum, T, false>(row);
        const LogSum total = row.receive(Merge{});
        const float inverse = 1.0f / total.sum;
        Out* const to = y + size_t(row.row) * cols;
        row.last([&](const typename Row::Raw& pack, int number) {
            float value[kVec];
            widen(pack, value);
#pragma unroll
            for (int j = 0; j < kVec; ++j) value[j] = exp_of(value[j] - total.largest) * inverse;
            store_pack(to, row.index(number), narrow<Out>(value));
        });
    }
}
