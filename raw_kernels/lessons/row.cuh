// What the row lessons share: a warp takes a row, lane t the columns t, t + 32, ...
//
// They are as plain as can be, so that the one mistake of each is easy to see.
#pragma once

#include "common/formats.cuh"
#include "common/logsum.cuh"
#include "common/reduce.cuh"

constexpr int kLanes = 32;

// f(column) for each column of this lane.
template <typename F>
void for_columns(int cols, F f) {
    for (int column = threadIdx.x; column < cols; column += kLanes) f(column);
}

template <typename V, typename Op>
V over_row(V value, Op op) {
    return warp_reduce<kLanes>(value, op);
}

// The largest element of a row.
template <typename T>
float largest_of(const T* row, int cols) {
    float largest = -infinity();
    for_columns(cols, [&](int c) { largest = fmaxf(largest, to_float(row[c])); });
    return over_row(largest, Larger{});
}

// A running sum that is kept in S.
template <typename S>
struct Running {
    S sum = from_acc<S>(0.0f);
    void add(float value) { sum = from_acc<S>(to_float(sum) + value); }
    // Lanes meet in S, too.
    float total() const {
        float all = to_float(sum);
#pragma unroll
        for (int mask = 1; mask < kLanes; mask *= 2) {
            all = to_float(from_acc<S>(all + __shfl_xor_sync(0xffffffffu, all, mask)));
        }
        return all;
    }
};
