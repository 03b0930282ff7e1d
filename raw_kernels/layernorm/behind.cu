// y (rows, cols) = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) of each row, var
// over n = cols; row-major.
//
// Idea: while a row is written, the moments of the next one are on their way to the other blocks and those of
// the one behind it are taken (common/behind.cuh). Every thread takes those of what it has of a row, on shifted data, so
// that nothing large cancels:
//   TwoPass  first the mean of what it has, then sums about it;
//   Welford  one pass, about the mean of its first pack.
// Moments are merged as Chan, Golub and LeVeque do (layernorm/moments.cuh). Everything is float32 until the one
// rounding to W. Where squares overflow (|x| above about 1e19), the row is gone over again times 2^-80,
// in one pass. Rows of 16-bit results whose mean is further from 0 than four times their spread take longer.
//
// Limits: packs of 16 bytes of x and y; a cluster of blocks; pointers aligned to 16 bytes.
// Sources: B. Welford, Technometrics 4(3), 1962; T. Chan, G. Golub, R. LeVeque, The American
// Statistician 37(3), 1983.
#include "common/behind.cuh"
#include "layernorm/moments.cuh"

// A pass over a row's packs as one over their values.
template <class Row, int kVec>
struct Values {
    const Row& row;

    template <typename F>
    static auto of_pack(F& f) {
        return [&f](const auto& pack, int) {
            float value[kVec];
            widen(pack, value);
            f(value);
        };
    }
    template <typename F>
    void first(F f) const {
        row.first(of_pack(f));
    }
    template <typename F>
    void again(F f) const {
        row.again(of_pack(f));
    }
};

// The same, once, with few registers.
template <class Row, int kVec>
struct Seldom {
    const Row& row;

    template <typename F>
    void first(F f) const {
        row.seldom(Values<Row, kVec>::of_pack(f));
    }
};

// How the threads' moments meet (common/behind.cuh).
template <typename W, bool kEven>
struct Meet : Chan<W, kEven> {
    struct Result {
        float scale;  // of the row; 0: its squares overflow; -1: as NearNormal does, which has no mean
        float mean, rstd, rest;
    };
    int cols;
    float eps;

    Meet(int of_row, float added) : cols(of_row), eps(added) {}
    Result finish(const Part& all, bool shrunk) const {
        if (!shrunk && !(all.squares < infinity())) return {};
        const Normal<W> normal(all, shrunk ? kShrink : 1.0f, share_of<W>(cols), eps);
        const NearNormal near(normal);
        if (sizeof(W) < 4 && !shrunk && near.serves()) return {-1.0f, 0.0f, near.rstd, near.shift};
        return {normal.scale, normal.mean, normal.rstd, normal.rest};
    }
    static bool again(const Result& of_row) { return of_row.scale == 0.0f; }
};

template <class Variance, typename T, typename W, int kVec, class Hold>
__global__ void __launch_bounds__(Hold::kThreads, Hold::kBlocks) GPULAB_CLUSTER_DIMS
    layernorm_behind(const T* __restrict__ x, const W* __restrict__ weight,
                     const W* __restrict__ bias, W* __restrict__ y, int rows, int cols, float eps) {
    using Row = typename Hold::template Rows<Plain<T, kVec>, Part, Meet<W, Hold::kEven>>;
    using InPlaces = typename Row::InPlaces;
    Row row({x}, rows, cols);
    row.ready();
    if (row.merges()) return row.merge({cols, eps});
    const auto moments = [](const InPlaces& of_row) {
        return Variance::template of<kVec>(Values<InPlaces, kVec>{of_row}, 1.0f);
    };
    row.template start<true>(moments);  // what came beside the parameters would hold them up
    OfColumns<Row, W> weights(weight), biases(bias);
    for (; row.more(); row.next()) {
        weights.bring(row);  // and they the first rows
        biases.bring(row);
        auto result = row.receive();
        W* const to = y + size_t(row.row) * cols;
        const auto write = [&](int number, const auto& pack, const auto& of, const auto& factors, const auto& offsets) {
            float value[kVec], factor[kVec], offset[kVec];
            widen(pack, value);
            widen(factors, factor);
            widen(offsets, offset);
#pragma unroll
            for (int j = 0; j < kVec; ++j) value[j] = fmaf(of(value[j]), factor[j], offset[j]);
            store_pack<true>(to, row.index(number), narrow<W>(value));
        };
        // Rows of 16-bit results are written from registers where their mean is near to 0. What else there is of
        // them is seldom needed: with few registers, the parameters read again, it takes nothing from those.
        if (sizeof(W) == 4 || row.by_all(result.scale >= 0.0f)) {
            if (row.by_all(Row::again(result))) {
                result = row.together(Welford::of<kVec>(Seldom<InPlaces, kVec>{row.current()}, kShrink));
            }
            const auto of = [&](float x) {
                return fmaf(fmaf(x, result.scale, -result.mean), result.rstd, result.rest);
            };
            if constexpr (sizeof(W) == 4) {
                row.current().first([&](const auto& pack, int number) {
                    write(number, pack, of, weights.pack(0, number), biases.pack(0, number));
                });
            } else {
                row.current().seldom([&](const auto& pack, int number) {
                    const int at = row.index(number);
                    write(number, pack, of, load_pack<W, kVec>(weight, at, false), load_pack<W, kVec>(bias, at, false));
                });
            }
        } else {
            row.current().first([&](const auto& pack, int number) {
                const auto of = [&](float x) { return fmaf(x, result.rstd, result.rest); };
                write(number, pack, of, weights.pack(0, number), biases.pack(0, number));
            });
        }
        row.sum_next(moments);
    }
}
