// y (rows, cols) = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) of each row, var
// over n = cols; row-major.
//
// Idea: while a row is written, the moments of the next one have been taken and are on their way to the
// other blocks (common/behind.cuh). Every thread takes those of what it has of a row, on shifted data, so
// that nothing large cancels:
//   TwoPass  first the mean of what it has, then sums about it;
//   Welford  one pass, about the mean of its first pack.
// Moments are merged as Chan, Golub and LeVeque do (layernorm/moments.cuh). Everything is float32 until the one
// rounding to W. Where squares overflow (|x| above about 1e19), the row is gone over again times 2^-80.
//
// Limits: packs of 16 bytes of x and y; a cluster of blocks; pointers aligned to 16 bytes.
// Sources: B. Welford, Technometrics 4(3), 1962; T. Chan, G. Golub, R. LeVeque, The American
// Statistician 37(3), 1983.
#include "common/behind.cuh"
#include "layernorm/moments.cuh"

// A pass over a row's packs as one over their values.
template <class Row, class Pass>
struct Values {
    static constexpr int kVec = Row::kVec;
    Pass pass;

    template <typename F>
    static auto of_pack(F& f) {
        return [&f](const typename Row::Raw& pack, int) {
            float value[kVec];
            widen(pack, value);
            f(value);
        };
    }
    template <typename F>
    void first(F f) {
        pass.first(of_pack(f));
    }
    template <typename F>
    void again(F f) {
        pass.again(of_pack(f));
    }
};

template <class Variance, class Row, class Pass>
Part moments(const Row&, Pass pass, float scale) {
    return Variance::template of<Row::kVec>(Values<Row, Pass>{pass}, scale);
}

template <class Variance, bool kStart, class Row, class Op>
void send_next(Row& row, Op) {
    const Part mine = moments<Variance>(row, typename Row::template Coming<kStart>{row}, 1.0f);
    row.template send<kStart>(Op::template lanes<32>(mine));
}

template <class Variance, typename T, typename W, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    layernorm_behind(const T* __restrict__ x, const W* __restrict__ weight,
                     const W* __restrict__ bias, W* __restrict__ y, int rows, int cols, float eps) {
    using Row = typename Hold::template Rows<T, Part>;
    const Chan<W, Hold::kEven> merge;
    const float share = share_of<W>(cols);
    Row row(x, rows, cols);
    row.ready();
    if (row.more()) send_next<Variance, true>(row, merge);
    OfColumns<Row, W> weights(weight), biases(bias);
    for (; row.more(); row.next()) {
        if (row.another()) send_next<Variance, false>(row, merge);
        weights.bring(row);  // late: they do not hold up the first rows
        biases.bring(row);
        Part all = row.receive(merge);
        float scale = 1.0f;
        if (row.by_all(!(all.squares < infinity()))) {
            scale = kShrink;
            all = row.together(moments<Variance>(row, typename Row::Current{row}, scale), merge);
        }
        const Normal<W> normal(all, scale, share, eps);

        W* const to = y + size_t(row.row) * cols;
        row.last([&](const typename Row::Raw& pack, int number) {
            float value[kVec], factor[kVec], offset[kVec];
            widen(pack, value);
            weights.values(row.index(number), number, factor);
            biases.values(row.index(number), number, offset);
#pragma unroll
            for (int j = 0; j < kVec; ++j) value[j] = fmaf(normal.of(value[j]), factor[j], offset[j]);
            store_pack<true>(to, row.index(number), narrow<W>(value));
        });
    }
}
