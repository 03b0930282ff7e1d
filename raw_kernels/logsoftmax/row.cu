// y (rows, cols) = (x - max) - log(sum(e^(x - max))) of each row; row-major.
//
// Idea: as softmax/row.cu, but the logarithm is formed directly: a probability that underflows
// still has a logarithm. Everything is float32 until the one rounding to Out.
//
// A row without a finite maximum (all -inf, or a +inf in it) gives NaN.
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/logsum.cuh"
#include "common/stream.cuh"

template <class Sum, typename T, typename Out, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    logsoftmax_row(const T* __restrict__ x, Out* __restrict__ y, int rows, int cols) {
    cluster_begin();
    typename Hold::template Rows<Plain<T, kVec>> row({x}, rows, cols);
    cluster_ready();
    for (; row.more(); row.next()) {
        const LogSum total = Sum::of(row);
        const float log_sum = logf(total.sum);
        Out* const to = y + size_t(row.row) * cols;
        row.last([&](const float(&value)[kVec], int at, int) {
            float result[kVec];
#pragma unroll
            for (int j = 0; j < kVec; ++j) result[j] = (value[j] - total.largest) - log_sum;
            store_pack(to, at, narrow<Out>(result));
        });
    }
}
