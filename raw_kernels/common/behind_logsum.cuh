// Maximum and sum of exponentials of rows that are summed one behind the other (common/behind.cuh). What
// a thread has of a row is summed beside its own maximum; the threads' meet as LogSums.
#pragma once

#include "common/behind.cuh"
#include "common/logsum.cuh"

// The larger ones of two numbers each, as they are stored; a NaN only of two NaN.
template <typename T>
unsigned larger_of_two(unsigned a, unsigned b);

template <>
inline unsigned larger_of_two<float>(unsigned a, unsigned b) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}

template <>
inline unsigned larger_of_two<__half>(unsigned a, unsigned b) {
    const __half2 both = __hmax2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    return *reinterpret_cast<const unsigned*>(&both);
}

template <>
inline unsigned larger_of_two<__nv_bfloat16>(unsigned a, unsigned b) {
    const __nv_bfloat162 both =
        __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const unsigned*>(&both);
}

// The maximum of packs, in the fields of a word.
template <typename T>
struct Largest {
    static constexpr int kFields = 4 / sizeof(T);
    unsigned word;

    Largest() {
        float lowest[kFields];
#pragma unroll
        for (int i = 0; i < kFields; ++i) lowest[i] = -infinity();
        word = narrow<T>(lowest).word[0];
    }
    template <int kVec>
    void take(const Pack<T, kVec>& pack) {
#pragma unroll
        for (int i = 0; i < Pack<T, kVec>::kWords; ++i) word = larger_of_two<T>(word, pack.word[i]);
    }
    float value() const {
        return fmaxf(field_to_float<T>(word, 0), field_to_float<T>(word, kFields - 1));
    }
};

template <typename T, int kVec>
void add_exponentials(const Pack<T, kVec>& pack, float base, SplitSum<4>& sum) {
    float value[kVec];
    widen(pack, value);
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum.of(j) += exp_of(value[j] - base);
}

template <class Sum>
struct OfThread;

template <>
struct OfThread<TwoPass> {
    template <typename T, class Row, class Pass>
    static LogSum of(const Row&, Pass pass) {
        Largest<T> seen;
        pass.first([&](const typename Row::Raw& pack, int) { seen.take(pack); });
        const float largest = seen.value(), base = base_of(largest);
        SplitSum<4> sum;
        pass.again([&](const typename Row::Raw& pack, int) { add_exponentials(pack, base, sum); });
        return {largest, sum.total()};
    }
};

// The sum is rescaled once a batch.
template <>
struct OfThread<Online> {
    template <typename T, class Row, class Pass>
    static LogSum of(const Row& row, Pass pass) {
        Largest<T> seen;
        SplitSum<4> sum;
        float before = -infinity();
        pass.first_batches([&](const typename Row::Raw(&raw)[Row::kBatch], int number) {
            row.each(raw, number, [&](const typename Row::Raw& pack, int) { seen.take(pack); });
            const float largest = seen.value(), base = base_of(largest);
            if (number > 0) {
                const float factor = exp_of(before - base);
#pragma unroll
                for (int i = 0; i < 4; ++i) sum.of(i) *= factor;
            }
            row.each(raw, number, [&](const typename Row::Raw& pack, int) {
                add_exponentials(pack, base, sum);
            });
            before = largest;
        });
        return {before, sum.total()};
    }
};

template <class Sum, typename T, bool kStart, class Row>
void send_next(Row& row) {
    const LogSum mine = OfThread<Sum>::template of<T>(row, typename Row::template Coming<kStart>{row});
    row.template send<kStart>(Merge::lanes<32>(mine));
}
