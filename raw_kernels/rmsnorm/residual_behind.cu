// s = x + residual (rows, cols), stored as residual_out; y = cast(s * rstd) * weight with
// rstd = 1 / sqrt(mean(s^2) + eps) of each row; row-major.
//
// Idea: while a row is written, the one two behind it is added, stored and summed (common/behind.cuh). The
// contracts, and everything else, are those of rmsnorm/residual_row.cu. Range: see rmsnorm/behind.cu.
//
// Limits: packs of 16 bytes; a cluster of blocks; pointers aligned to 16 bytes. Source: see rmsnorm/row.cu.
#include "rmsnorm/squares.cuh"
#include "rmsnorm/sums.cuh"

template <template <typename, int> class Sum, typename T, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    rmsnorm_residual_behind(const T* __restrict__ x, const T* __restrict__ residual,
                            const T* __restrict__ weight, T* __restrict__ y, T* __restrict__ residual_out,
                            int rows, int cols, float eps) {
    using Row = typename Hold::template Rows<Sum<T, kVec>, float, Squares>;
    Row row({x, residual}, rows, cols);
    row.ready();
    if (row.merges()) return row.merge({cols, eps});
    const auto sum = [&](const auto& of_row) {
        T* const to = residual_out + size_t(of_row.number) * cols;
        SplitSum<4> squares;
        of_row.first([&](const auto& raw, int number) {
            float value[kVec];
            row.source.values(raw, value);
            store_pack(to, row.index(number), narrow<T>(value));
#pragma unroll
            for (int j = 0; j < kVec; ++j) squares.of(j) = fmaf(value[j], value[j], squares.of(j));
        });
        return squares.total();
    };
    row.start(sum);
    OfColumns<Row, T> weights(weight);
    for (; row.more(); row.next()) {
        weights.bring(row);
        const float factor = factor_of(row);
        T* const to = y + size_t(row.row) * cols;
        row.current().first([&](const auto& raw, int number) {
            float normal[kVec];
            row.source.values(raw, normal);
#pragma unroll
            for (int j = 0; j < kVec; ++j) normal[j] *= factor;
            store_pack(to, row.index(number), products(narrow<T>(normal), weights.pack(0, number)));
        });
        row.sum_next(sum);
    }
}
