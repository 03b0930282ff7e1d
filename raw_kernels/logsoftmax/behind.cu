// y (rows, cols) = (x - max) - log(sum(e^(x - max))) of each row; row-major.
//
// Idea: as softmax/behind.cu, but the logarithm is formed directly: a probability that underflows
// still has a logarithm. Everything is float32 until the one rounding to Out.
//
// A row without a finite maximum (all -inf, or a +inf in it) gives NaN.
// Limits: packs of 16 bytes; a cluster of blocks; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/behind_logsum.cuh"

template <class Sum, typename T, typename Out, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    logsoftmax_behind(const T* __restrict__ x, Out* __restrict__ y, int rows, int cols) {
    using Row = typename Hold::template Rows<T, LogSum>;
    Row row(x, rows, cols);
    row.ready();
    if (row.more()) send_next<Sum, T, true>(row);
    for (; row.more(); row.next()) {
        if (row.another()) send_next<Sum, T, false>(row);
        const LogSum total = row.receive(Merge{});
        const float log_sum = logf(total.sum);
        Out* const to = y + size_t(row.row) * cols;
        row.last([&](const typename Row::Raw& pack, int number) {
            float value[kVec];
            widen(pack, value);
#pragma unroll
            for (int j = 0; j < kVec; ++j) value[j] = (value[j] - total.largest) - log_sum;
            store_pack(to, row.index(number), narrow<Out>(value));
        });
    }
}
