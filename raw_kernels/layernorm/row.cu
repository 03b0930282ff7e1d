// y (rows, cols) = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) of each row, var
// over n = cols; row-major.
//
// Idea: a row is read once and stays on the chip (common/row.cuh). Every thread takes the moments of what it
// has of a row, on shifted data, so that nothing large cancels (layernorm/moments.cuh):
//   TwoPass  first the mean of what it has, then sums about it;
//   Welford  one pass, about the mean of its first pack.
// The threads' moments are merged; meanwhile weight and bias come, where they stay in registers. Everything
// is float32 until the one rounding to W. Where squares overflow (|x| above about 1e19), the row is gone over
// again times 2^-80.
//
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Sources: B. Welford, Technometrics 4(3), 1962; T. Chan, G. Golub, R. LeVeque, The American
// Statistician 37(3), 1983.
#include "common/stream.cuh"
#include "layernorm/moments.cuh"

// A row as its values: as it is read; or gone over once more, for what is seldom needed.
template <class Row>
struct Reading {
    Row& row;

    template <typename F>
    void first(F f) {
        row.begun([&f](const float(&value)[Row::kVec], int, int) { f(value); });
    }
    template <typename F>
    void again(F f) {
        row.again([&f](const float(&value)[Row::kVec], int, int) { f(value); });
    }
};
template <class Row>
struct OnceMore {
    Row& row;

    template <typename F>
    void first(F f) {
        row.anew([&f](const float(&value)[Row::kVec], int, int) { f(value); });
    }
    template <typename F>
    void again(F f) {
        first(f);
    }
};

template <class Variance, typename T, typename W, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    layernorm_row(const T* __restrict__ x, const W* __restrict__ weight, const W* __restrict__ bias,
                  W* __restrict__ y, int rows, int cols, float eps) {
    using Row = typename Hold::template Rows<Plain<T, kVec>>;
    cluster_begin();
    Row row({x}, rows, cols);
    cluster_ready();
    OfColumns<Row, W> weights(weight), biases(bias);
    const Chan<W, Row::kEven> merge;
    const float share = share_of<W>(cols);
    for (; row.more(); row.next()) {
        float scale = 1.0f;
        row.begin();
        if constexpr (Variance::kOnePass) {
            weights.bring(row);
            biases.bring(row);
            if (cols < 0) asm volatile("trap;");  // never: what is above is asked for before what follows
        }
        const Part mine = Variance::template of<kVec>(Reading<Row>{row}, scale);
        if constexpr (!Variance::kOnePass) {  // whose two passes need the registers
            weights.bring(row);
            biases.bring(row);
        }
        Part all = row_reduce<0>(row, mine, merge);
        const bool overflows = !(all.squares < infinity());
        if (any_row<Row::kGroup>(overflows)) {
            if (overflows) scale = kShrink;
            const Part again = Variance::template of<kVec>(OnceMore<Row>{row}, scale);
            row_meet(row);  // the moments of the first time have been read
            all = row_reduce<0>(row, again, merge);
            weights.bring(row);  // once more: no register holds them meanwhile
            biases.bring(row);
        }
        const Normal<W> normal(all, scale, share, eps);

        W* const to = y + size_t(row.row) * cols;
        row.last([&](const float(&value)[kVec], int at, int number) {
            float factor[kVec], offset[kVec], result[kVec];
            weights.values(at, number, factor);
            biases.values(at, number, offset);
#pragma unroll
            for (int j = 0; j < kVec; ++j) result[j] = fmaf(normal.of(value[j]), factor[j], offset[j]);
            store_pack<true>(to, at, narrow<W>(result));
        });
    }
}
