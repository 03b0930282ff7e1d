// The log of a sum of exponentials, kept as maximum and scaled sum, in float32.
#pragma once

#include "common/reduce.cuh"
#include "ptx/approx.cuh"

// e^d for d <= 0: relative error at most (|d| + 4) 2^-24 about. The difference to the maximum is
// formed before the multiplication by log2(e): folding the maximum into one fused operation would
// cost |max| 2^-24 instead.
inline float exp_of(float d) { return ptx::exp2_approx(d * 1.44269504088896340736f); }

// sum of e^x over some elements = e^largest * sum. No elements: (-inf, 0).
struct LogSum {
    float largest, sum;
};

// What is subtracted before exp: the maximum, or 0 while that is -inf (-inf - -inf is not a number).
inline float base_of(float largest) { return largest == -infinity() ? 0.0f : largest; }

struct Merge {
    LogSum operator()(LogSum a, LogSum b) const {
        const float largest = fmaxf(a.largest, b.largest);
        const float base = base_of(largest);
        return {largest, a.sum * exp_of(a.largest - base) + b.sum * exp_of(b.largest - base)};
    }
    // Of the lanes of a warp: the maximum of all first, then one exponential a lane.
    template <int kLanes>
    static LogSum lanes(LogSum mine) {
        const LogSum one[1] = {mine};
        return lanes<kLanes>(one);
    }
    // Of several a lane.
    template <int kLanes, int kCount>
    static LogSum lanes(const LogSum (&mine)[kCount]) {
        float largest = mine[0].largest;
#pragma unroll
        for (int i = 1; i < kCount; ++i) largest = fmaxf(largest, mine[i].largest);
        largest = Larger::lanes<kLanes>(largest);
        const float base = base_of(largest);
        float sum[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum[i] = mine[i].sum * exp_of(mine[i].largest - base);
        return {largest, Add::lanes<kLanes>(sum)};
    }
};

// e^(x - largest) / sum. Results Out of 16 bits do not show it if the division is made in the exponent, by
// log2(sum), which costs up to |log2(sum)| 2^-24: one operation less. Those of float do.
template <typename Out>
struct Probability {
    static constexpr bool kInExponent = sizeof(Out) < 4;
    float largest, divisor;

    Probability() = default;
    explicit Probability(LogSum of_row)
        : largest(of_row.largest), divisor(kInExponent ? -log2f(of_row.sum) : 1.0f / of_row.sum) {}
    float of(float x) const {
        const float d = x - largest;
        return kInExponent ? ptx::exp2_approx(fmaf(d, 1.44269504088896340736f, divisor)) : exp_of(d) * divisor;
    }
};

// (x - largest) - log(sum): formed directly, so that a probability that underflows still has a logarithm.
struct LogProbability {
    float largest, log_sum;

    LogProbability() = default;
    explicit LogProbability(LogSum of_row) : largest(of_row.largest), log_sum(logf(of_row.sum)) {}
    float of(float x) const { return (x - largest) - log_sum; }
};

// One more pack, online: the sum so far is rescaled when the maximum grows. A NaN makes the sum NaN.
template <int kVec>
void take(LogSum& so_far, const float (&value)[kVec]) {
    constexpr int kChains = kVec < 2 ? 1 : 2;  // no operation waits for the one before it
    float chain[kChains] = {so_far.largest};
    if constexpr (kChains > 1) chain[1] = value[1];
#pragma unroll
    for (int j = 0; j < kVec; ++j) chain[j % kChains] = fmaxf(chain[j % kChains], value[j]);
    const float largest = fmaxf(chain[0], chain[kChains - 1]), base = base_of(largest);
    chain[kChains - 1] = 0.0f;
    chain[0] = so_far.sum * exp_of(so_far.largest - base);
#pragma unroll
    for (int j = 0; j < kVec; ++j) chain[j % kChains] += exp_of(value[j] - base);
    if constexpr (kChains > 1) chain[0] += chain[1];
    so_far = {largest, chain[0]};
}

inline LogSum nothing() { return {-infinity(), 0.0f}; }

// Maximum and sum of a row by two passes: the maximum of the whole row first.
struct TwoPass {
    template <class Row>
    static LogSum of(Row& row) {
        constexpr int kVec = Row::kVec;
        float largest = -infinity();
        row.first([&](const float(&value)[kVec], int, int) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) largest = fmaxf(largest, value[j]);
        });
        largest = row_reduce<0>(row, largest, Larger{});
        const float base = base_of(largest);
        SplitSum<4> sum;
        row.again([&](const float(&value)[kVec], int, int) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) sum.of(j) += exp_of(value[j] - base);
        });
        return {largest, row_reduce<1>(row, sum.total(), Add{})};
    }
};

// Both in one pass.
struct Online {
    template <class Row>
    static LogSum of(Row& row) {
        LogSum total = nothing();
        row.first([&](const float(&value)[Row::kVec], int, int) { take(total, value); });
        return row_reduce<0>(row, total, Merge{});
    }
};
