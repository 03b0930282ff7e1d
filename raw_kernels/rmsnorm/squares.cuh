// Sums of squares of rows that are summed one behind the other (common/behind.cuh).
#pragma once

#include "common/behind.cuh"

// A row whose squares overflow (|x| above about 1e19) is gone over again times this.
constexpr float kShrink = 0x1p-80f;

// Their meetings (common/behind.cuh). The result is what x is multiplied with: 1 / sqrt(mean(x^2) + eps); below
// 0 if the squares overflow.
struct Squares : Add {
    using Result = float;
    int cols;
    float eps;

    Squares(int of_row, float added) : cols(of_row), eps(added) {}
    float finish(float sum, bool shrunk) const {
        if (!shrunk && !(sum < infinity())) return -1.0f;
        const float scale = shrunk ? kShrink : 1.0f;
        return 1.0f / sqrtf(sum / float(cols) + eps * scale * scale) * scale;
    }
    static bool again(float factor) { return factor < 0.0f; }
};

template <class InPlaces>
float squares(const InPlaces& row) {
    SplitSum<4> sum;
    row.first([&](const auto& raw, int) {
        float value[InPlaces::kVec];
        row.of.source.values(raw, value);
#pragma unroll
        for (int j = 0; j < InPlaces::kVec; ++j) sum.of(j) = fmaf(value[j], value[j], sum.of(j));
    });
    return sum.total();
}

// The result of the row that is written.
template <class Row>
float factor_of(Row& row) {
    const float factor = row.receive();
    if (!row.by_all(Squares::again(factor))) return factor;
    float sum = 0.0f;
    row.current().seldom([&](const auto& raw, int) {
        float value[Row::kVec];
        row.source.values(raw, value);
#pragma unroll
        for (int j = 0; j < Row::kVec; ++j) {
            const float small = value[j] * kShrink;
            sum = fmaf(small, small, sum);
        }
    });
    return row.together(sum);
}
