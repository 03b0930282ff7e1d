// y (rows, cols) = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) of each row, var
// over n = cols; row-major.
//
// Idea: while a row is written, the moments of the next one have been taken and are on their way to the
// other blocks (common/behind.cuh). Every thread takes those of what it has of a row, on shifted data, so
// that nothing large cancels:
//   TwoPass  first the mean of what it has, then sums of x - shift and (x - shift)^2;
//   Welford  one pass: the shift is the mean of its first pack. (The mean square about that is at most
//            packs + 1 times the variance, by Cauchy and Schwarz.)
// The first sum corrects the mean, and moments are merged as Chan, Golub and LeVeque do, with means as
// shift + rest: a row far from 0 keeps the digits of its spread. Everything is float32 until the one
// rounding to W. Where squares overflow (|x| above about 1e19), the row is gone over again times 2^-80.
//
// Limits: packs of 16 bytes of x and y; a cluster of blocks; pointers aligned to 16 bytes.
// Sources: B. Welford, Technometrics 4(3), 1962; T. Chan, G. Golub, R. LeVeque, The American
// Statistician 37(3), 1983.
#include "common/behind.cuh"
#include "layernorm/moments.cuh"

// A pass over values: f(values, number of the pack).
template <class Row, typename F>
auto values_of(const Row&, F f) {
    return [f](const typename Row::Raw& pack, int number) mutable {
        float value[Row::kVec];
        widen(pack, value);
        f(value, number);
    };
}

struct TwoPass {
    template <class Row, class Pass>
    static Part of(const Row& row, Pass pass, float scale, float count) {
        SplitSum<4> sum;
        pass.first(values_of(row, [&](const float(&value)[Row::kVec], int) {
#pragma unroll
            for (int j = 0; j < Row::kVec; ++j) sum.of(j) += value[j] * scale;
        }));
        const float shift = sum.total() / count;
        About about;
        pass.again(values_of(row, [&](const float(&value)[Row::kVec], int) {
            about.take(value, scale, shift);
        }));
        return about.of(count, shift);
    }
};

struct Welford {
    template <class Row, class Pass>
    static Part of(const Row& row, Pass pass, float scale, float count) {
        About about;
        float shift = 0.0f;
        pass.first(values_of(row, [&](const float(&value)[Row::kVec], int number) {
            if (number == 0) shift = mean_of_pack(value, scale);
            about.take(value, scale, shift);
        }));
        return about.of(count, shift);
    }
};

// What a thread has of a row, times scale.
template <class Variance, class Row, class Pass>
Part moments(const Row& row, Pass pass, float scale) {
    const int packs = row.mine();
    if (packs == 0) return {};
    return Variance::of(row, pass, scale, float(packs * Row::kVec));
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
    const Chan<Hold::kEven> merge;
    Row row(x, rows, cols);
    row.ready();
    if (row.more()) send_next<Variance, true>(row, merge);
    OfColumns<Row, W> weights(weight), biases(bias);
    for (; row.more(); row.next()) {
        if (row.another()) send_next<Variance, false>(row, merge);
        if (row.turn == 0) {  // late: they do not hold up the first rows
            weights.bring(row);
            biases.bring(row);
        }
        Part all = row.receive(merge);
        float scale = 1.0f;
        if (row.by_all(!(all.squares < infinity()))) {
            scale = kShrink;
            all = row.together(moments<Variance>(row, typename Row::Current{row}, scale), merge);
        }
        const float variance = all.squares / float(cols);
        // Rounding may take it below 0 in a row of equal values; a NaN stays.
        const float spread = (variance < 0.0f ? 0.0f : variance) + eps * scale * scale;
        // A constant row times 2^-80 has neither variance nor eps left; its results are the bias.
        const float rstd = spread == 0.0f ? 0.0f : 1.0f / sqrtf(spread);
        const float rest = -all.rest * rstd;

        W* const to = y + size_t(row.row) * cols;
        row.last([&](const typename Row::Raw& pack, int number) {
            float value[kVec], factor[kVec], offset[kVec];
            widen(pack, value);
            weights.values(row.index(number), number, factor);
            biases.values(row.index(number), number, offset);
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float centred = fmaf(value[j], scale, -all.mean);
                value[j] = fmaf(fmaf(centred, rstd, rest), factor[j], offset[j]);
            }
            store_pack<true>(to, row.index(number), narrow<W>(value));
        });
    }
}
