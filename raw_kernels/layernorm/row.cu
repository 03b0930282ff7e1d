// y (rows, cols) = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) of each row, var
// over n = cols; row-major.
//
// Idea: a row is read once and stays on the chip (common/row.cuh). Both ways to the variance work on
// shifted data, so that nothing large cancels:
//   TwoPass  a first mean m, then sums of x - m and (x - m)^2; the first corrects m.
//   Welford  one pass, each thread over what it has of the row, about the mean of its first pack; the threads'
//            moments are merged (layernorm/moments.cuh).
// Everything is float32 until the one rounding to W. Where squares overflow (|x| above about 1e19), the row
// is gone over again times 2^-80.
//
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Sources: B. Welford, Technometrics 4(3), 1962; T. Chan, G. Golub, R. LeVeque, The American
// Statistician 37(3), 1983.
#include "common/stream.cuh"
#include "layernorm/moments.cuh"

// Mean and variance of scale * x, as shift + mean.
struct Moments {
    float shift, mean, variance;
};

struct Both {
    float first, second;
};

struct AddBoth {
    Both operator()(Both a, Both b) const { return {a.first + b.first, a.second + b.second}; }
    template <int kLanes>
    static Both lanes(Both mine) {
        return warp_reduce<kLanes>(mine, AddBoth{});
    }
};

// Over the row; kRead: it has not been read yet.
template <bool kRead, class Row, typename F>
void over(Row& row, F f) {
    if constexpr (kRead) {
        row.first(f);
    } else {
        row.again(f);
    }
}

struct TwoPass {
    template <bool kRead, class Row>
    static Moments of(Row& row, float scale, float count) {
        constexpr int kVec = Row::kVec;
        SplitSum<4> sum;
        over<kRead>(row, [&](const float(&value)[kVec], int, int) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) sum.of(j) += value[j] * scale;
        });
        const float shift = row_reduce<0>(row, sum.total(), Add{}) / count;
        SplitSum<2> left, squares;
        row.again([&](const float(&value)[kVec], int, int) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float d = fmaf(value[j], scale, -shift);
                left.of(j) += d;
                squares.of(j) = fmaf(d, d, squares.of(j));
            }
        });
        const Both sums = row_reduce<1>(row, Both{left.total(), squares.total()}, AddBoth{});
        const float mean = sums.first / count;
        const float variance = sums.second / count - mean * mean;
        // Rounding may take it below 0 in a row of equal values; a NaN stays.
        return {shift, mean, variance < 0.0f ? 0.0f : variance};
    }
};

struct Welford {
    template <bool kRead, class Row>
    static Moments of(Row& row, float scale, float count) {
        constexpr int kVec = Row::kVec;
        About about;
        float shift = 0.0f;
        int packs = 0;
        over<kRead>(row, [&](const float(&value)[kVec], int, int) {
            if (packs++ == 0) shift = mean_of_pack(value, scale);
            about.take(value, scale, shift);
        });
        const Part mine = packs == 0 ? Part{} : about.of(float(packs * kVec), shift);
        if constexpr (!kRead) row_meet(row);  // the moments of the first time have been read
        const Part all = row_reduce<0>(row, mine, Chan<Row::kEven>{});
        const float variance = all.squares / count;
        return {all.mean, all.rest, variance < 0.0f ? 0.0f : variance};
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
    weights.bring(row);
    biases.bring(row);
    const float count = float(cols);
    for (; row.more(); row.next()) {
        const size_t start = size_t(row.row) * cols;
        float scale = 1.0f;
        Moments m = Variance::template of<true>(row, scale, count);
        const bool overflows = !(m.variance < infinity());
        if (any_row<Row::kGroup>(overflows)) {
            if (overflows) scale = kShrink;
            m = Variance::template of<false>(row, scale, count);
        }
        const float spread = m.variance + eps * scale * scale;
        // A constant row times 2^-80 has neither variance nor eps left; its results are the bias.
        const float rstd = spread == 0.0f ? 0.0f : 1.0f / sqrtf(spread);

        row.last([&](const float(&value)[kVec], int at, int number) {
            float factor[kVec], offset[kVec], result[kVec];
            weights.values(at, number, factor);
            biases.values(at, number, offset);
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float centred = fmaf(value[j], scale, -m.shift) - m.mean;
                result[j] = fmaf(centred * rstd, factor[j], offset[j]);
            }
            store_pack<true>(y + start, at, narrow<W>(result));
        });
    }
}
