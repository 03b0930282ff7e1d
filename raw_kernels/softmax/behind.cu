// y (rows, cols) = e^(x - max) / sum(e^(x - max)) of each row; row-major.
//
// Idea: while a row is written, maximum and sum of the next one are on their way to the other blocks, and
// those of the one behind it are found (common/behind.cuh). A thread goes over what it has of a row twice,
// for its own maximum and for the sum beside it (TwoPass), or once, rescaling the sum when the maximum
// grows (Online); the threads' sums are rescaled to the row's maximum. Everything is float32 until the one
// rounding to Out.
//
// A row without a finite maximum (all -inf, or a +inf in it) has no softmax: it gives NaN.
// Limits: packs of 16 bytes; a cluster of blocks; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/behind_logsum.cuh"

template <class Sum, typename T, typename Out, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    softmax_behind(const T* __restrict__ x, Out* __restrict__ y, int rows, int cols) {
    write_rows<Sum, Probability<Out>, T, Out, kVec, Hold, true>(x, y, rows, cols);
}
