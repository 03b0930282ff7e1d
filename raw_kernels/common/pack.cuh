// A few consecutive elements moved by one memory access. They stay packed in 32-bit words, as they
// are stored, and become float32 values where they are used.
#pragma once

#include "common/formats.cuh"
#include "ptx/async.cuh"
#include "ptx/shared.cuh"

// The register type of one access.
template <int kBytes>
struct Access;
template <>
struct Access<1> {
    using Type = unsigned char;
};
template <>
struct Access<2> {
    using Type = unsigned short;
};
template <>
struct Access<4> {
    using Type = unsigned;
};
template <>
struct Access<8> {
    using Type = uint2;
};
template <>
struct Access<16> {
    using Type = uint4;
};

// kCount elements of T: 1, 2, 4, 8 or 16 bytes, aligned to their whole size in memory.
template <typename T, int kCount>
struct Pack {
    static constexpr int kBytes = sizeof(T) * kCount;
    static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
    using Memory = typename Access<kBytes>::Type;
    unsigned word[kWords];
};

template <typename T, int kCount>
Pack<T, kCount> packed(typename Pack<T, kCount>::Memory memory) {
    using P = Pack<T, kCount>;
    P pack;
    if constexpr (P::kBytes < 4) {
        pack.word[0] = memory;
    } else {
#pragma unroll
        for (int i = 0; i < P::kWords; ++i) {
            pack.word[i] = reinterpret_cast<const unsigned*>(&memory)[i];
        }
    }
    return pack;
}

// Elements kCount * index .. of an array whose start is aligned to a whole pack. `once`: read for
// the last time, and not through L1, which is left to what is read again.
template <typename T, int kCount>
Pack<T, kCount> load_pack(const T* from, size_t index, bool once) {
    using Memory = typename Pack<T, kCount>::Memory;
    const Memory* at = reinterpret_cast<const Memory*>(from) + index;
    return packed<T, kCount>(once ? __ldcg(at) : __ldg(at));
}

// What is written is not read again here: first to leave the caches. kStays: in its turn, so that what a
// kernel writes last may still be in L2 when it ends.
template <bool kStays = false, typename T, int kCount>
void store_pack(T* to, size_t index, const Pack<T, kCount>& pack) {
    using P = Pack<T, kCount>;
    using Memory = typename P::Memory;
    Memory memory;
    if constexpr (P::kBytes < 4) {
        memory = Memory(pack.word[0]);
    } else {
#pragma unroll
        for (int i = 0; i < P::kWords; ++i) {
            reinterpret_cast<unsigned*>(&memory)[i] = pack.word[i];
        }
    }
    Memory* const at = reinterpret_cast<Memory*>(to) + index;
    if constexpr (kStays) {
        *at = memory;
    } else {
        __stcs(at, memory);
    }
}

// Asynchronously into shared memory: packs of 4, 8 or 16 bytes, from sm_80.
template <typename T, int kCount>
void copy_pack(Pack<T, kCount>* to, const T* from) {
    constexpr int kBytes = Pack<T, kCount>::kBytes;
    const unsigned there = ptx::shared_address(to);
    if constexpr (kBytes == 16) ptx::cp_async_16(there, from, 16);
    if constexpr (kBytes == 8) ptx::cp_async_8(there, from, 8);
    if constexpr (kBytes == 4) ptx::cp_async_4(there, from, 4);
}

template <typename T, int kCount>
void widen(const Pack<T, kCount>& pack, float (&value)[kCount]) {
    constexpr int kPerWord = 4 / sizeof(T);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
        value[j] = field_to_float<T>(pack.word[j / kPerWord], j % kPerWord);
    }
}

template <typename T, int kCount>
Pack<T, kCount> narrow(const float (&value)[kCount]) {
    constexpr int kPerWord = 4 / sizeof(T);
    Pack<T, kCount> pack{};
    if constexpr (kPerWord == 2 && kCount % 2 == 0) {  // one instruction rounds two
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) {
            pack.word[i] = code_of_two<T>(value[2 * i], value[2 * i + 1]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            pack.word[j / kPerWord] |= code_of(from_acc<T>(value[j]))
                                       << (j % kPerWord * 8 * sizeof(T));
        }
    }
    return pack;
}

// Products as T stores them. Those of 16-bit numbers have at most 22 bits: float32 holds them exactly,
// except bf16's below 2^-134, which round to 0 either way. So all are rounded once.
template <typename T, int kCount>
Pack<T, kCount> products(const Pack<T, kCount>& a, const Pack<T, kCount>& b) {
    if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
        Pack<T, kCount> pack;
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) pack.word[i] = products_of_two<T>(a.word[i], b.word[i]);
        return pack;
    } else {
        float value[kCount], factor[kCount];
        widen(a, value);
        widen(b, factor);
#pragma unroll
        for (int j = 0; j < kCount; ++j) value[j] *= factor[j];
        return narrow<T>(value);
    }
}

// Values as T stores them.
template <typename T, int kCount>
void round_through(float (&value)[kCount]) {
    widen(narrow<T>(value), value);
}

// The compiler may not carry over what it derived from the pack before: it is unpacked again, which
// costs less than registers for the values.
template <typename T, int kCount>
void forget_values(Pack<T, kCount>& pack) {
#pragma unroll
    for (int i = 0; i < Pack<T, kCount>::kWords; ++i) asm volatile("" : "+r"(pack.word[i]));
}
