// y (rows, cols) = e^(x - max) / sum(e^(x - max)) of each row; row-major.
//
// Idea: a row is read once and stays on the chip (common/row.cuh). The maximum and the sum come
// from two passes over it (TwoPass) or from one that rescales its sum when the maximum grows
// (Online); another pass writes. Everything is float32 until the one rounding to Out.
//
// A row without a finite maximum (all -inf, or a +inf in it) has no softmax: it gives NaN.
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/logsum.cuh"
#include "common/stream.cuh"

template <class Sum, typename T, typename Out, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    softmax_row(const T* __restrict__ x, Out* __restrict__ y, int rows, int cols) {
    cluster_begin();
    typename Hold::template Rows<Plain<T, kVec>> row({x}, rows, cols);
    cluster_ready();
    for (; row.more(); row.next()) {
        const LogSum total = Sum::of(row);
        const Probability<Out> probability(total);
        Out* const to = y + size_t(row.row) * cols;
        row.last([&](const float(&value)[kVec], int at, int) {
            float result[kVec];
#pragma unroll
            for (int j = 0; j < kVec; ++j) result[j] = probability.of(value[j]);
            store_pack(to, at, narrow<Out>(result));
        });
    }
}
