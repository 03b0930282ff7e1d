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

// How the threads' meet: Of is made of all of a row (common/behind.cuh).
template <class Of>
struct Meet : Merge {
    using Result = Of;
    static Of finish(const LogSum& all, bool) { return Of(all); }
    static constexpr bool again(const Of&) { return false; }
};

// Maximum and sum of what a thread has of a row; the maximum first, then the sum beside it.
template <class Sum>
struct OfThread {
    template <typename T, class Row>
    static LogSum of(const Row& row) {
        Largest<T> seen;
        SplitSum<4> sum;
        row.template by_several<Row::kPacks>([&](const auto& packs, int) {
            packs([&](const auto& pack, int) { seen.take(pack); });
            const float base = base_of(seen.value());
            packs([&](const auto& pack, int) { add_exponentials(pack, base, sum); });
        });
        return {seen.value(), sum.total()};
    }
};

// In one pass: the sum is rescaled once every kPacks packs.
template <>
struct OfThread<Online> {
    static constexpr int kPacks = 4;

    template <typename T, class Row>
    static LogSum of(const Row& row) {
        Largest<T> seen;
        SplitSum<4> sum;
        float before = -infinity();
        row.template by_several<kPacks>([&](const auto& packs, int number) {
            packs([&](const auto& pack, int) { seen.take(pack); });
            const float largest = seen.value(), base = base_of(largest);
            if (number > 0) {
                const float factor = exp_of(before - base);
#pragma unroll
                for (int i = 0; i < 4; ++i) sum.of(i) *= factor;
            }
            packs([&](const auto& pack, int) { add_exponentials(pack, base, sum); });
            before = largest;
        });
        return {before, sum.total()};
    }
};

// y of rows, each element by Of::of.
template <class Sum, class Of, typename T, typename Out, int kVec, class Hold, bool kStays>
void write_rows(const T* x, Out* y, int rows, int cols) {
    using Row = typename Hold::template Rows<Plain<T, kVec>, LogSum, Meet<Of>>;
    Row row({x}, rows, cols);
    row.ready();
    if (row.merges()) return row.merge({});
    const auto sum = [](const auto& of_row) { return OfThread<Sum>::template of<T>(of_row); };
    row.start(sum);
    for (; row.more(); row.next()) {
        const Of result = row.receive();
        Out* const to = y + size_t(row.row) * cols;
        row.current().first([&](const auto& pack, int number) {
            float value[kVec];
            widen(pack, value);
#pragma unroll
            for (int j = 0; j < kVec; ++j) value[j] = result.of(value[j]);
            store_pack<kStays>(to, row.index(number), narrow<Out>(value));
        });
        row.sum_next(sum);
    }
}
