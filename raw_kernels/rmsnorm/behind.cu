// y (rows, cols) = cast(x * rstd) * weight, rstd = 1 / sqrt(mean(x^2) + eps) of each row; row-major.
//
// Idea: while a row is written, the sums of the next one's squares are on their way to the other blocks, and
// those of the one behind it are taken (common/behind.cuh). Types and rounding points are those of rmsnorm/row.cu.
//
// Range: where the sum overflows (|x| above about 1e19), the row is gone over again times 2^-80. The
// factor of x is then 2^-80 / sqrt(...), which is subnormal where the root of the mean square is above
// 2^126 and loses up to two bits there.
//
// Limits: packs of 16 bytes of x and y; a cluster of blocks; pointers aligned to 16 bytes.
// Source: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
#include "rmsnorm/squares.cuh"

template <typename T, typename W, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    rmsnorm_behind(const T* __restrict__ x, const W* __restrict__ weight, W* __restrict__ y, int rows,
                   int cols, float eps) {
    using Row = typename Hold::template Rows<Plain<T, kVec>, float, Squares>;
    Row row({x}, rows, cols);
    row.ready();
    if (row.merges()) return row.merge({cols, eps});
    const auto sum = [](const auto& of_row) { return squares(of_row); };
    row.start(sum);
    OfColumns<Row, W> weights(weight);
    for (; row.more(); row.next()) {
        weights.bring(row);
        const float factor = factor_of(row);
        W* const to = y + size_t(row.row) * cols;
        row.current().first([&](const auto& pack, int number) {
            float normal[kVec];
            widen(pack, normal);
#pragma unroll
            for (int j = 0; j < kVec; ++j) normal[j] *= factor;
            store_pack(to, row.index(number), products(narrow<W>(normal), weights.pack(0, number)));
        });
        row.sum_next(sum);
    }
}
