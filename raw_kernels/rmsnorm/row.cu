// y (rows, cols) = cast(x * rstd) * weight, rstd = 1 / sqrt(mean(x^2) + eps) of each row; row-major.
//
// Idea: a row is read once and stays on the chip (common/row.cuh) while the sum of its squares is
// taken and it is written out. Sums are float32. The normalised value is rounded to the weight's
// type W before the multiplication, whose product is rounded to W again: these two are the
// declared rounding points.
//
// Range: where the sum overflows (|x| above about 1e19), the row is gone over again times 2^-80, so that a
// finite row gives a finite result; the power of two changes no other bit.
//
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Source: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
#include "common/stream.cuh"

constexpr float kShrink = 0x1p-80f;

template <typename T, typename W, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    rmsnorm_row(const T* __restrict__ x, const W* __restrict__ weight, W* __restrict__ y, int rows,
                int cols, float eps) {
    using Row = typename Hold::template Rows<Plain<T, kVec>>;
    cluster_begin();
    Row row({x}, rows, cols);
    cluster_ready();
    OfColumns<Row, W> weights(weight);
    for (; row.more(); row.next()) {
        SplitSum<4> squares;
        row.first([&](const float(&value)[kVec], int, int) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) squares.of(j) = fmaf(value[j], value[j], squares.of(j));
        });
        weights.bring(row);
        float sum = row_reduce<0>(row, squares.total(), Add{});

        float scale = 1.0f;
        if (any_row<Row::kGroup>(!(sum < infinity()))) {
            if (!(sum < infinity())) scale = kShrink;
            sum = 0.0f;
            row.anew([&](const float(&value)[kVec], int, int) {
#pragma unroll
                for (int j = 0; j < kVec; ++j) {
                    const float small = value[j] * scale;
                    sum = fmaf(small, small, sum);
                }
            });
            sum = row_reduce<1>(row, sum, Add{});
        }
        const float rstd = 1.0f / sqrtf(sum / float(cols) + eps * scale * scale);

        W* const to = y + size_t(row.row) * cols;
        row.last([&](const float(&value)[kVec], int at, int number) {
            float normal[kVec];
#pragma unroll
            for (int j = 0; j < kVec; ++j) normal[j] = value[j] * scale * rstd;
            const auto factor = weights.pack(at, number);
            const auto rounded = narrow<W>(normal);
            store_pack(to, at, products(rounded, factor));
        });
    }
}
