// s = x + residual (rows, cols), stored as residual_out; y = cast(s * rstd) * weight with
// rstd = 1 / sqrt(mean(s^2) + eps) of each row; row-major.
//
// The two contracts differ in which s is normalised:
//   SumKept     fp32-sum: the float32 sum, for the variance and for the normalisation; only
//               residual_out is rounded.
//   SumRounded  rounded-sum: the sum as residual_out stores it.
// Everything else is rmsnorm/row.cu: the row stays on the chip, sums are float32, the normalised value is
// rounded to the weight's type before the multiplication. For fp32-sum both addends stay, since
// their float32 sum has no shorter exact form.
//
// Limits: cols a multiple of kVec; pointers aligned to 16 bytes.
#include "common/row.cuh"

constexpr float kShrink = 0x1p-80f;

// Two rows and their sum in float32.
template <typename T, int kVec>
struct SumKept {
    static constexpr int kValues = kVec;
    struct Raw {
        Pack<T, kVec> x, residual;
    };
    using Held = Raw;
    const T* x;
    const T* residual;

    Raw load(unsigned at, bool once) const {
        return {load_pack<T, kVec>(x, at, once), load_pack<T, kVec>(residual, at, once)};
    }
    Held hold(const Raw& raw) const { return raw; }
    void values(const Held& held, float (&value)[kVec]) const {
        float other[kVec];
        widen(held.x, value);
        widen(held.residual, other);
#pragma unroll
        for (int j = 0; j < kVec; ++j) value[j] += other[j];
    }
    static void forget(Held& held) {
        forget_values(held.x);
        forget_values(held.residual);
    }
};

// Two rows and their sum as it is stored.
template <typename T, int kVec>
struct SumRounded : SumKept<T, kVec> {
    using typename SumKept<T, kVec>::Raw;
    using Held = Pack<T, kVec>;

    Held hold(const Raw& raw) const {
        float value[kVec];
        SumKept<T, kVec>::values(raw, value);
        return narrow<T>(value);
    }
    void values(const Held& held, float (&value)[kVec]) const { widen(held, value); }
    static void forget(Held& held) { forget_values(held); }
};

template <template <typename, int> class Sum, typename T, int kVec, int kGroup, int kRows, int kRegs,
          int kShared>
__global__ void __launch_bounds__(kGroup* kRows) GPULAB_CLUSTER_DIMS
    rmsnorm_residual(const T* __restrict__ x, const T* __restrict__ residual,
                     const T* __restrict__ weight, T* __restrict__ y, T* __restrict__ residual_out,
                     int rows, int cols, float eps) {
    using Where = Place<kGroup, kRows>;
    using From = Sum<T, kVec>;
    cluster_begin();
    const Where where(rows);
    const size_t start = where.row * cols;
    Row<From, kGroup * kRows, Where::kTeam, kRegs, kShared> row(
        From{x + start, residual + start}, where.member, where.inside ? unsigned(cols) / kVec : 0u);

    float sum = 0.0f;
    row.first([&](const float(&value)[kVec], unsigned at) {
        store_pack(residual_out + start, at, narrow<T>(value));
#pragma unroll
        for (int j = 0; j < kVec; ++j) sum = fmaf(value[j], value[j], sum);
    });
    cluster_ready();
    sum = row_reduce<kGroup, 0>(sum, Add{});

    float scale = 1.0f;
    if (any_row<kGroup>(!(sum < infinity()))) {
        if (!(sum < infinity())) scale = kShrink;
        sum = 0.0f;
        row.again([&](const float(&value)[kVec], unsigned) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const float small = value[j] * scale;
                sum = fmaf(small, small, sum);
            }
        });
        sum = row_reduce<kGroup, 1>(sum, Add{});
    }
    const float rstd = 1.0f / sqrtf(sum / float(cols) + eps * scale * scale);

    row.again([&](const float(&value)[kVec], unsigned at) {
        float normal[kVec], factor[kVec];
        widen(load_pack<T, kVec>(weight, at, false), factor);
#pragma unroll
        for (int j = 0; j < kVec; ++j) normal[j] = value[j] * scale * rstd;
        round_through<T>(normal);
#pragma unroll
        for (int j = 0; j < kVec; ++j) normal[j] *= factor[j];
        store_pack(y + start, at, narrow<T>(normal));
    });
}
