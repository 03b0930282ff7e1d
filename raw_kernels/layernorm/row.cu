// y (rows, cols) = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) of each row, var
// over n = cols; row-major.
//
// Idea: a row is read once and stays on the chip (common/row.cuh). Both ways to the variance work on
// shifted data, so that nothing large cancels:
//   TwoPass  a first mean m, then sums of x - m and (x - m)^2; the first corrects m.
//   Welford  one pass over x - x[0]; each place of a pack keeps its own count, mean and sum of squares
//            (one division a pack), which are merged as Chan, Golub and LeVeque do.
// Everything is float32 until the one rounding to W. Where squares overflow (|x| above about 1e19), the row
// is gone over again times 2^-80.
//
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
// Sources: B. Welford, Technometrics 4(3), 1962; T. Chan, G. Golub, R. LeVeque, The American
// Statistician 37(3), 1983.
#include "common/row.cuh"

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
};

struct Sums {
    float first, second;
};

struct AddBoth {
    Sums operator()(Sums a, Sums b) const { return {a.first + b.first, a.second + b.second}; }
};

struct TwoPass {
    // kFrom: the first reduction slot. kRead: the row has not been read yet.
    template <int kGroup, int kFrom, bool kRead, typename Row>
    static Moments of(Row& row, float, float scale, float count) {
        constexpr int kVec = Row::kVec;
        float sum = 0.0f;
        const auto add = [&](const float(&value)[kVec], unsigned) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) sum += value[j] * scale;
        };
        if constexpr (kRead) {
            row.first(add);
            cluster_ready();
        } else {
            row.again(add);
        }
        const float shift = row_reduce<kGroup, kFrom>(sum, Add{}) / count;
        Sums sums{0.0f, 0.0f};
        row.again([&](const float(&value)[kVec], unsigned) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float d = value[j] * scale - shift;
                sums.first += d;
                sums.second = fmaf(d, d, sums.second);
            }
        });
        sums = row_reduce<kGroup, kFrom + 1>(sums, AddBoth{});
        const float mean = sums.first / count;
        const float variance = sums.second / count - mean * mean;
        // Rounding may take it below 0 in a row of equal values; a NaN stays.
        return {shift, mean, variance < 0.0f ? 0.0f : variance};
    }
};

struct Welford {
    template <int kGroup, int kFrom, bool kRead, typename Row>
    static Moments of(Row& row, float shift, float scale, float count) {
        constexpr int kVec = Row::kVec;
        float seen = 0.0f, mean[kVec] = {}, squares[kVec] = {};
        const auto add = [&](const float(&value)[kVec], unsigned) {
            seen += 1.0f;
            const float share = 1.0f / seen;
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float d = value[j] * scale - shift, delta = d - mean[j];
                mean[j] = fmaf(delta, share, mean[j]);
                squares[j] = fmaf(delta, d - mean[j], squares[j]);
            }
        };
        if constexpr (kRead) {
            row.first(add);
            cluster_ready();
        } else {
            row.again(add);
        }
        Part total{seen, mean[0], squares[0]};
#pragma unroll
        for (int j = 1; j < kVec; ++j) total = Chan{}(total, {seen, mean[j], squares[j]});
        total = row_reduce<kGroup, kFrom>(total, Chan{});
        return {shift, total.mean, total.squares / count};
    }
};

template <class Variance, typename T, typename W, int kVec, int kGroup, int kRows, int kRegs, int kShared>
__global__ void __launch_bounds__(kGroup* kRows) GPULAB_CLUSTER_DIMS
    layernorm_row(const T* __restrict__ x, const W* __restrict__ weight, const W* __restrict__ bias,
                  W* __restrict__ y, int rows, int cols, float eps) {
    using Where = Place<kGroup, kRows>;
    cluster_begin();
    const Where where(rows);
    const size_t start = where.row * cols;
    Row<Plain<T, kVec>, kGroup * kRows, Where::kTeam, kRegs, kShared> row(
        {x + start}, where.member, where.inside ? unsigned(cols) / kVec : 0u);

    const float count = float(cols);
    const float origin = where.inside ? to_float(x[start]) : 0.0f;
    float scale = 1.0f;
    Moments m = Variance::template of<kGroup, 0, true>(row, origin, scale, count);
    const bool overflows = !(m.variance < infinity());
    if (any_row<kGroup>(overflows)) {
        if (overflows) scale = kShrink;
        m = Variance::template of<kGroup, 2, false>(row, origin * scale, scale, count);
    }
    const float spread = m.variance + eps * scale * scale;
    // A constant row times 2^-80 has neither variance nor eps left; its results are 0.
    const float rstd = spread == 0.0f ? 0.0f : 1.0f / sqrtf(spread);

    row.again([&](const float(&value)[kVec], unsigned at) {
        float factor[kVec], offset[kVec], result[kVec];
        widen(load_pack<W, kVec>(weight, at, false), factor);
        widen(load_pack<W, kVec>(bias, at, false), offset);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
            const float centred = value[j] * scale - m.shift - m.mean;
            result[j] = fmaf(centred * rstd, factor[j], offset[j]);
        }
        store_pack(y + start, at, narrow<W>(result));
    });
}
