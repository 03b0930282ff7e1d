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
    write_rows<Sum, LogProbability, T, Out, kVec, Hold, false>(x, y, rows, cols);
}
