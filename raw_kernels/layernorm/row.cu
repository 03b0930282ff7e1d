// y (rows, cols) = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) of each row, var
// over n = cols; row-major.
//
// Idea: a row is read once and stays on the chip (common/row.cuh). Both ways to the variance work on
// shifted data, so that nothing large cancels:
//   TwoPass  a first mean m, then sums of x - m and (x - m)^2; the first corrects m.
//   Welford  one pass over x - x[0]; each pack has its mean and sum of squares, which are merged with those of the
//            packs before it, and then of the other threads, as Chan, Golub and LeVeque do.
// Everything is float32 until the one rounding to W. Where squares overflow (|x| above about 1e19), the row
// is gone over again times 2^-80.
//
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Sources: B. Welford, Technometrics 4(3), 1962; T. Chan, G. Golub, R. LeVeque, The American
// Statistician 37(3), 1983.
#include "common/stream.cuh"

constexpr float kShrink = 0x1p-80f;

// Mean and variance of scale * x, as shift + mean.
struct Moments {
    float shift, mean, variance;
};

// What some elements say: how many, their mean, the sum of squares about it.
struct Part {
    float count, mean, squares;
};

struct Chan {
    Part operator()(Part a, Part b) const {
        const float count = a.count + b.count;
        if (count == 0.0f) return a;
        const float delta = b.mean - a.mean, share = b.count / count;
        return {count, fmaf(delta, share, a.mean),
                a.squares + b.squares + delta * delta * (a.count * share)};
    }
    // Of the lanes of a warp: their common mean first, then the squares about it.
    template <int kLanes>
    static Part lanes(Part mine) {
        const float count = Add::lanes<kLanes>(mine.count);
        const float share = count == 0.0f ? 0.0f : mine.count / count;
        const float mean = Add::lanes<kLanes>(share * mine.mean), delta = mine.mean - mean;
        return {count, mean, Add::lanes<kLanes>(fmaf(delta * delta, mine.count, mine.squares))};
    }
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

// The row's values times scale, which is 1 while the row has not been read.
template <bool kRead, class Row, typename F>
void over_scaled(Row& row, float scale, F f) {
    if constexpr (kRead) {
        row.first(f);
    } else {
        row.again([&](const float(&value)[Row::kVec], int at, int number) {
            float scaled[Row::kVec];
#pragma unroll
            for (int j = 0; j < Row::kVec; ++j) scaled[j] = value[j] * scale;
            f(scaled, at, number);
        });
    }
}

struct TwoPass {
    // kFrom: the first reduction slot. kRead: the row has not been read yet.
    template <int kFrom, bool kRead, class Row, typename T>
    static Moments of(Row& row, T, float scale, float count) {
        constexpr int kVec = Row::kVec;
        SplitSum<4> sum;
        over_scaled<kRead>(row, scale, [&](const float(&value)[kVec], int, int) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) sum.of(j) += value[j];
        });
        const float shift = row_reduce<kFrom>(row, sum.total(), Add{}) / count;
        SplitSum<2> left, squares;
        row.again([&](const float(&value)[kVec], int, int) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float d = fmaf(value[j], scale, -shift);
                left.of(j) += d;
                squares.of(j) = fmaf(d, d, squares.of(j));
            }
        });
        const Both sums = row_reduce<kFrom + 1>(row, Both{left.total(), squares.total()}, AddBoth{});
        const float mean = sums.first / count;
        const float variance = sums.second / count - mean * mean;
        // Rounding may take it below 0 in a row of equal values; a NaN stays.
        return {shift, mean, variance < 0.0f ? 0.0f : variance};
    }
};

struct Welford {
    // first: the row's first element as it is stored. It is widened behind the row's loads, which would
    // else wait for it.
    template <int kFrom, bool kRead, class Row, typename T>
    static Moments of(Row& row, T first, float scale, float count) {
        constexpr int kVec = Row::kVec;
        const auto shift = [&] { return kRead ? to_float(first) : to_float(first) * scale; };
        float packs = 0.0f, mean = 0.0f, squares = 0.0f;
        over_scaled<kRead>(row, scale, [&](const float(&value)[kVec], int, int number) {
            float d[kVec];
            SplitSum<4> sum;
            SplitSum<2> about_own;
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                d[j] = value[j] - shift();
                sum.of(j) += d[j];
            }
            const float own = sum.total() * (1.0f / kVec);
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float left = d[j] - own;
                about_own.of(j) = fmaf(left, left, about_own.of(j));
            }
            // The same number, but known to the compiler when a row is read.
            const float before = kRead ? float(number) : packs;
            const float share = 1.0f / (before + 1.0f), delta = own - mean;
            mean = fmaf(delta, share, mean);
            squares += fmaf(delta * delta, before * kVec * share, about_own.total());
            packs += 1.0f;
        });
        const Part total = row_reduce<kFrom>(row, Part{packs * kVec, mean, squares}, Chan{});
        return {shift(), total.mean, total.squares / count};
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
    OfColumns<Row, W> weights(row, weight), biases(row, bias);
    const float count = float(cols);
    T first = x[size_t(row.inside() ? row.row : 0) * cols];
    for (; row.more(); row.next()) {
        const size_t start = size_t(row.row) * cols;
        float scale = 1.0f;
        Moments m = Variance::template of<0, true>(row, first, scale, count);
        const bool overflows = !(m.variance < infinity());
        if (any_row<Row::kGroup>(overflows)) {
            if (overflows) scale = kShrink;
            m = Variance::template of<2, false>(row, first, scale, count);
        }
        const float spread = m.variance + eps * scale * scale;
        // A constant row times 2^-80 has neither variance nor eps left; its results are the bias.
        const float rstd = spread == 0.0f ? 0.0f : 1.0f / sqrtf(spread);

        // The next row's first element is fetched while this row is written.
        const unsigned following = row.row + row.step;
        if (following < row.rows) first = x[size_t(following) * cols];

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
