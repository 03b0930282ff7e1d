// y (rows, cols) = (x - max) - log(sum(e^(x - max))) of each row; row-major.
//
// Idea: as softmax/row.cu, but the logarithm is formed directly: a probability that underflows
// still has a logarithm. Everything is float32 until the one rounding to Out.
//
// A row without a finite maximum (all -inf, or a +inf in it) gives NaN.
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "common/logsum.cuh"
#include "common/row.cuh"

template <class Sum, typename T, typename Out, int kVec, int kGroup, int kRows, int kRegs, int kShared>
__global__ void __launch_bounds__(kGroup* kRows) GPULAB_CLUSTER_DIMS
    logsoftmax_row(const T* __restrict__ x, Out* __restrict__ y, int rows, int cols) {
    using Where = Place<kGroup, kRows>;
    cluster_begin();
    const Where where(rows);
    const size_t start = where.row * cols;
    Row<Plain<T, kVec>, kGroup * kRows, Where::kTeam, kRegs, kShared> row(
        {x + start}, where.member, where.inside ? unsigned(cols) / kVec : 0u);

    const LogSum total = Sum::template of<kGroup>(row);
    const float log_sum = logf(total.sum);
    row.again([&](const float(&value)[kVec], unsigned at) {
        float result[kVec];
#pragma unroll
        for (int j = 0; j < kVec; ++j) result[j] = (value[j] - total.largest) - log_sum;
        store_pack(y + start, at, narrow<Out>(result));
    });
}
