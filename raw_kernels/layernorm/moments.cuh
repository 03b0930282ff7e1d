// Mean and variance of parts of a row, and how they are merged: as Chan, Golub and LeVeque do, with means as
// mean + rest, so that a row far from 0 keeps the digits of its spread.
// Source: T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983.
#pragma once

#include "common/reduce.cuh"

// A row whose squares overflow (|x| above about 1e19) is gone over again times this.
constexpr float kShrink = 0x1p-80f;

// What some elements say: how many, their mean as mean + rest, the sum of squares about it.
struct alignas(16) Part {
    float count, mean, rest, squares;
};

// kEven: all have the same count.
template <bool kEven>
struct Chan {
    Part operator()(Part a, Part b) const {
        const Part both[2] = {a, b};
        return lanes<1>(both);
    }
    // Of the lanes of a warp: about their common mean, which the sum of what is left corrects.
    template <int kLanes>
    static Part lanes(Part mine) {
        const Part one[1] = {mine};
        return lanes<kLanes>(one);
    }
    // Of several a lane.
    template <int kLanes, int kCount>
    static Part lanes(const Part (&mine)[kCount]) {
        float count[kCount], share[kCount], part[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) count[i] = mine[i].count;
        const float all = kEven ? count[0] * (kLanes * kCount) : Add::lanes<kLanes>(count);
        const float each = kEven ? 1.0f / (kLanes * kCount) : all == 0.0f ? 0.0f : 1.0f / all;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            share[i] = kEven ? each : count[i] * each;
            part[i] = mine[i].mean * share[i];
        }
        const float mean = Add::lanes<kLanes>(part);
        float squares[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float delta = (mine[i].mean - mean) + mine[i].rest;
            part[i] = delta * share[i];
            squares[i] = fmaf(delta * delta, count[i], mine[i].squares);
        }
        const float rest = Add::lanes<kLanes>(part), sum = Add::lanes<kLanes>(squares);
        return {all, mean, rest, fmaf(-rest * rest, all, sum)};
    }
};

// Sums of x * scale - shift and of its square.
struct About {
    SplitSum<2> left, squares;

    template <int kVec>
    void take(const float (&value)[kVec], float scale, float shift) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
            const float d = fmaf(value[j], scale, -shift);
            left.of(j) += d;
            squares.of(j) = fmaf(d, d, squares.of(j));
        }
    }
    Part of(float count, float shift) const {
        const float sum = left.total(), rest = sum / count;
        return {count, shift, rest, fmaf(-rest, sum, squares.total())};
    }
};

// About the first pack of a thread, one pass is enough: the mean square about that pack's mean is at most
// packs + 1 times the variance, by Cauchy and Schwarz.
template <int kVec>
float mean_of_pack(const float (&value)[kVec], float scale) {
    SplitSum<4> sum;
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum.of(j) += value[j] * scale;
    return sum.total() / float(kVec);
}
