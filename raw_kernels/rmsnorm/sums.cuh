// Sources of a row that is the sum of two (common/row.cuh), by the two contracts.
#pragma once

#include "common/row.cuh"

// Two rows and their sum in float32.
template <typename T, int kVec>
struct SumKept {
    static constexpr int kValues = kVec, kArrays = 2;
    using Part = Pack<T, kVec>;
    struct Raw {
        Part x, residual;
    };
    const T* x;
    const T* residual;

    const T* array(int a) const { return a == 0 ? x : residual; }
    static Part& part(Raw& raw, int a) { return a == 0 ? raw.x : raw.residual; }
    Raw load(size_t at, bool once) const {
        return {load_pack<T, kVec>(x, at, once), load_pack<T, kVec>(residual, at, once)};
    }
    void values(const Raw& raw, float (&value)[kVec]) const {
        float other[kVec];
        widen(raw.x, value);
        widen(raw.residual, other);
#pragma unroll
        for (int j = 0; j < kVec; ++j) value[j] += other[j];
    }
    static void forget(Raw& raw) {
        forget_values(raw.x);
        forget_values(raw.residual);
    }
};

// Two rows and their sum as it is stored.
template <typename T, int kVec>
struct SumRounded : SumKept<T, kVec> {
    using typename SumKept<T, kVec>::Raw;

    void values(const Raw& raw, float (&value)[kVec]) const {
        SumKept<T, kVec>::values(raw, value);
        round_through<T>(value);
    }
};
