// s = x + residual (rows, cols), stored as residual_out; y = cast(s * rstd) * weight with
// rstd = 1 / sqrt(mean(s^2) + eps) of each row; row-major.
//
// The two contracts differ in which s is normalised:
//   SumKept     fp32-sum: the float32 sum, for the variance and for the normalisation; only
//               residual_out is rounded.
//   SumRounded  rounded-sum: the sum as residual_out stores it.
// Everything else is rmsnorm/row.cu: the row stays on the chip, sums are float32, the normalised value is
// rounded to the weight's type before the multiplication. Both addends stay on the chip, and are added anew
// in each pass: their float32 sum has no shorter exact form.
//
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes. Source: see rmsnorm/row.cu.
#include "common/stream.cuh"
#include "rmsnorm/sums.cuh"

constexpr float kShrink = 0x1p-80f;

template <template <typename, int> class Sum, typename T, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    rmsnorm_residual_row(const T* __restrict__ x, const T* __restrict__ residual,
                         const T* __restrict__ weight, T* __restrict__ y, T* __restrict__ residual_out,
                         int rows, int cols, float eps) {
    using Row = typename Hold::template Rows<Sum<T, kVec>>;
    cluster_begin<Row::kPolls>();
    Row row({x, residual}, rows, cols);
    cluster_ready();
    OfColumns<Row, T> weights(weight);
    for (; row.more(); row.next()) {
        const size_t start = size_t(row.row) * cols;
        SplitSum<4> squares;
        row.first([&](const float(&value)[kVec], int at, int) {
            store_pack(residual_out + start, at, narrow<T>(value));
#pragma unroll
            for (int j = 0; j < kVec; ++j) squares.of(j) = fmaf(value[j], value[j], squares.of(j));
        });
        weights.bring(row);
        float sum = row_reduce<0>(row, squares.total(), Add{});

        float scale = 1.0f;
        if (any_row<Row::kGroup>(!(sum < infinity()))) {
            if (!(sum < infinity())) scale = kShrink;
            sum = 0.0f;
            row.again([&](const float(&value)[kVec], int, int) {
#pragma unroll
                for (int j = 0; j < kVec; ++j) {
                    const float small = value[j] * scale;
                    sum = fmaf(small, small, sum);
                }
            });
            sum = row_reduce<1>(row, sum, Add{});
        }
        const float rstd = 1.0f / sqrtf(sum / float(cols) + eps * scale * scale);

        row.last([&](const float(&value)[kVec], int at, int number) {
            float normal[kVec];
#pragma unroll
            for (int j = 0; j < kVec; ++j) normal[j] = value[j] * scale * rstd;
            const auto factor = weights.pack(at, number);
            const auto rounded = narrow<T>(normal);
            store_pack(y + start, at, products(rounded, factor));
        });
    }
}
