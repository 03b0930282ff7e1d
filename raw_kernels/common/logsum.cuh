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
};

// One more pack, online: the sum so far is rescaled when the maximum grows. A NaN makes the sum NaN.
template <int kVec>
void take(LogSum& so_far, const float (&value)[kVec]) {
    float largest = so_far.largest;
#pragma unroll
    for (int j = 0; j < kVec; ++j) largest = fmaxf(largest, value[j]);
    const float base = base_of(largest);
    float sum = so_far.sum * exp_of(so_far.largest - base);
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum += exp_of(value[j] - base);
    so_far = {largest, sum};
}

inline LogSum nothing() { return {-infinity(), 0.0f}; }

// Maximum and sum of a row by two passes: the maximum of the whole row first.
struct TwoPass {
    template <int kGroup, typename Row>
    static LogSum of(Row& row) {
        constexpr int kVec = Row::kVec;
        float largest = -infinity();
        row.first([&](const float(&value)[kVec], unsigned) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) largest = fmaxf(largest, value[j]);
        });
        cluster_ready();
        largest = row_reduce<kGroup, 0>(largest, Larger{});
        const float base = base_of(largest);
        float sum = 0.0f;
        row.again([&](const float(&value)[kVec], unsigned) {
#pragma unroll
            for (int j = 0; j < kVec; ++j) sum += exp_of(value[j] - base);
        });
        return {largest, row_reduce<kGroup, 1>(sum, Add{})};
    }
};

// Both in one pass.
struct Online {
    template <int kGroup, typename Row>
    static LogSum of(Row& row) {
        LogSum total = nothing();
        row.first([&](const float(&value)[Row::kVec], unsigned) { take(total, value); });
        cluster_ready();
        return row_reduce<kGroup, 0>(total, Merge{});
    }
};
