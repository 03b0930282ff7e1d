// Mean and variance of parts of a row, and how they are merged: as Chan, Golub and LeVeque do, with means as
// mean + rest, so that a row far from 0 keeps the digits of its spread.
// Source: T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983.
#pragma once

#include "common/reduce.cuh"
#include "ptx/approx.cuh"

// A row whose squares overflow (|x| above about 1e19) is gone over again times this.
constexpr float kShrink = 0x1p-80f;

// What some elements say: how many, their mean as mean + rest, the sum of squares about it.
struct alignas(16) Part {
    float count, mean, rest, squares;
};

// kEven: all have the same count. Results of 16 bits (W) do not show what is lost where the lanes' means meet
// about one of them: those of float do.
template <typename W, bool kEven>
struct Chan {
    Part operator()(Part a, Part b) const {
        const Part both[2] = {a, b};
        return lanes<1>(both);
    }
    // Of the lanes of a warp.
    template <int kLanes>
    static Part lanes(Part mine) {
        const Part one[1] = {mine};
        return lanes<kLanes>(one);
    }
    // Of several a lane.
    template <int kLanes, int kCount>
    static Part lanes(const Part (&mine)[kCount]) {
        return sizeof(W) < 4 ? about_first<kLanes>(mine) : about_mean<kLanes>(mine);
    }

  private:
    // About the mean of the first: one meeting of the lanes is enough. (The mean square about one of n means is
    // at most n + 1 times that about their mean.)
    template <int kLanes, int kCount>
    static Part about_first(const Part (&mine)[kCount]) {
        const float mean = of_first<kLanes>(mine[0].mean), rest = of_first<kLanes>(mine[0].rest);
        float count[kCount], left[kCount], squares[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float delta = (mine[i].mean - mean) + (mine[i].rest - rest);
            count[i] = mine[i].count;
            left[i] = delta * (kEven ? 1.0f : count[i]);
            squares[i] = fmaf(delta * delta, count[i], mine[i].squares);
        }
        const float all = kEven ? count[0] * (kLanes * kCount) : Add::lanes<kLanes>(count);
        const float each = kEven ? 1.0f / (kLanes * kCount) : all == 0.0f ? 0.0f : 1.0f / all;
        const float off = Add::lanes<kLanes>(left) * each, sum = Add::lanes<kLanes>(squares);
        const float exact = rest + off, near = mean + exact;
        return {all, near, exact - (near - mean), fmaf(-off * off, all, sum)};
    }
    // About their common mean, which the sum of what is left corrects.
    template <int kLanes, int kCount>
    static Part about_mean(const Part (&mine)[kCount]) {
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
    template <int kLanes>
    static float of_first(float value) {
        return kLanes == 1 ? value : __shfl_sync(0xffffffffu, value, threadIdx.x % 32 / kLanes * kLanes);
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

template <int kVec>
float mean_of_pack(const float (&value)[kVec], float scale) {
    SplitSum<4> sum;
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum.of(j) += value[j] * scale;
    return sum.total() / float(kVec);
}

// What a thread has of a row, times scale. Pass: first(f) and again(f) go over its packs, f(values).
//
// First the mean of what it has, then sums of x - shift and (x - shift)^2.
struct TwoPass {
    static constexpr bool kOnePass = false;
    template <int kVec, class Pass>
    static Part of(Pass pass, float scale) {
        SplitSum<4> sum;
        int packs = 0;
        pass.first([&](const float(&value)[kVec]) {
            ++packs;
#pragma unroll
            for (int j = 0; j < kVec; ++j) sum.of(j) += value[j] * scale;
        });
        if (packs == 0) return {};
        const float count = float(packs * kVec), shift = sum.total() / count;
        About about;
        pass.again([&](const float(&value)[kVec]) { about.take(value, scale, shift); });
        return about.of(count, shift);
    }
};

// About the mean of the first pack, one pass is enough: the mean square about that is at most packs + 1 times
// the variance, by Cauchy and Schwarz.
struct Welford {
    static constexpr bool kOnePass = true;
    template <int kVec, class Pass>
    static Part of(Pass pass, float scale) {
        About about;
        float shift = 0.0f;
        int packs = 0;
        pass.first([&](const float(&value)[kVec]) {
            if (packs++ == 0) shift = mean_of_pack(value, scale);
            about.take(value, scale, shift);
        });
        return packs == 0 ? Part{} : about.of(float(packs * kVec), shift);
    }
};

// 1 / length and 1 / sqrt(x): approximate, within 2 ulp. A float result W would show that: a step of Newton's
// method then leaves about half an ulp.
template <typename W>
float share_of(int length) {
    const float count = float(length), share = ptx::rcp_approx(count);
    return sizeof(W) < 4 ? share : fmaf(share, fmaf(-count, share, 1.0f), share);
}
template <typename W>
float one_over_root(float x) {
    const float root = ptx::rsqrt_approx(x);
    return sizeof(W) < 4 ? root : fmaf(0.5f * root, fmaf(-x * root, root, 1.0f), root);
}

// (x - mean) * rstd of a row, from the moments of scale times the row; share = 1 / its length.
template <typename W>
struct Normal {
    float scale, mean, rstd, rest;

    Normal() = default;
    Normal(const Part& all, float of_row, float share, float eps) : scale(of_row), mean(all.mean) {
        const float variance = all.squares * share;
        // Rounding may take it below 0 in a row of equal values; a NaN stays.
        const float spread = (variance < 0.0f ? 0.0f : variance) + eps * scale * scale;
        // A constant row times 2^-80 has neither variance nor eps left; its results are the bias.
        rstd = spread == 0.0f ? 0.0f : one_over_root<W>(spread);
        rest = -all.rest * rstd;
    }
    float of(float x) const { return fmaf(fmaf(x, scale, -mean), rstd, rest); }

};

// The same of a row of 16-bit results as x rstd + shift, by one operation less: where the mean is near to 0, that is as exact as
// they show, its error about (|mean| + |x|) rstd 2^-24.
struct NearNormal {
    float rstd, shift;

    template <typename W>
    explicit NearNormal(const Normal<W>& normal)
        : rstd(normal.rstd), shift(fmaf(-normal.mean, normal.rstd, normal.rest)) {}
    bool serves() const { return fabsf(shift) < 4.0f; }
};
