// y (rows, cols) = cast(x * rstd) * weight, rstd = 1 / sqrt(mean(x^2) + eps) of each row; row-major.
//
// Idea: while a row is written, the squares of the next one have been summed and the sums are on their
// way to the other blocks (common/behind.cuh). Types and rounding points are those of rmsnorm/row.cu.
//
// Range: where the sum overflows (|x| above about 1e19), the row is gone over again times 2^-80. The
// factor of x is then 2^-80 / sqrt(...), which is subnormal where the root of the mean square is above
// 2^126 and loses up to two bits there.
//
// Limits: packs of 16 bytes of x and y; a cluster of blocks; pointers aligned to 16 bytes.
// Source: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
#include "common/behind.cuh"

constexpr float kShrink = 0x1p-80f;

// What this thread has of a row, squared.
template <class Row, class Pass>
float squares(Pass pass, float scale) {
    SplitSum<4> sum;
    pass.first([&](const typename Row::Raw& pack, int) {
        float value[Row::kVec];
        widen(pack, value);
#pragma unroll
        for (int j = 0; j < Row::kVec; ++j) {
            const float scaled = value[j] * scale;
            sum.of(j) = fmaf(scaled, scaled, sum.of(j));
        }
    });
    return sum.total();
}

template <bool kStart, class Row>
void send_next(Row& row) {
    const float mine = squares<Row>(typename Row::template Coming<kStart>{row}, 1.0f);
    row.template send<kStart>(Add::lanes<32>(mine));
}

template <typename T, typename W, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    rmsnorm_behind(const T* __restrict__ x, const W* __restrict__ weight, W* __restrict__ y, int rows,
                   int cols, float eps) {
    using Row = typename Hold::template Rows<T, float>;
    Row row(x, rows, cols);
    row.ready();
    if (row.more()) send_next<true>(row);
    OfColumns<Row, W> weights(weight);
    weights.bring(row);
    for (; row.more(); row.next()) {
        if (row.another()) send_next<false>(row);
        float sum = row.receive(Add{}), scale = 1.0f;
        if (row.by_all(!(sum < infinity()))) {
            scale = kShrink;
            sum = row.together(squares<Row>(typename Row::Current{row}, scale), Add{});
        }
        const float factor = 1.0f / sqrtf(sum / float(cols) + eps * scale * scale) * scale;

        W* const to = y + size_t(row.row) * cols;
        row.last([&](const typename Row::Raw& pack, int number) {
            float normal[kVec];
            widen(pack, normal);
#pragma unroll
            for (int j = 0; j < kVec; ++j) normal[j] *= factor;
            forget_values(weights.kept[number]);
            store_pack(to, row.index(number), products(narrow<W>(normal), weights.kept[number]));
        });
    }
}
