// The number formats as device types: how a stored code becomes an accumulator's value and back,
// and the multiply-add of each accumulator. The only header that knows formats; kernels are
// written over T (storage) and Acc.
//
// Decoding is exact for every code, NaN and subnormals included. fp8 has an instruction from sm_89
// on; before, its bits are moved into a wider format and the exponent bias is corrected by an
// exact power of two.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

inline float to_float(float x) { return x; }
inline float to_float(__half x) { return __half2float(x); }

// bf16 is the upper half of fp32.
inline float to_float(__nv_bfloat16 x) {
    return __uint_as_float((unsigned)__bfloat16_as_ushort(x) << 16);
}

// e5m2 is the upper byte of fp16.
inline float to_float(__nv_fp8_e5m2 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return float(x);
#else
    return __half2float(__ushort_as_half((unsigned short)((unsigned)x.__x << 8)));
#endif
}

// e4m3: exponent and mantissa (s.eeee.mmm) lie across fp32's fields when shifted by 20; fp32's bias
// is 127 and e4m3's 7, so the value is 2^-120 times too small, subnormals too. The one NaN code is
// all ones.
inline float to_float(__nv_fp8_e4m3 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return float(x);
#else
    const unsigned code = x.__x;
    const unsigned magnitude = code & 0x7fu;
    const unsigned sign = (code & 0x80u) << 24;
    const float scaled = __uint_as_float(sign | magnitude << 20) * 0x1p120f;
    return magnitude == 0x7fu ? __uint_as_float(0x7fffffffu) : scaled;
#endif
}

// The value of a stored number in the accumulator's type; exact (fp16 accumulates fp16 only).
template <typename Acc, typename T>
Acc to_acc(T x);

// The nearest stored number; ties to even, overflow to infinity.
template <typename T, typename Acc>
T from_acc(Acc x);

template <typename Acc>
struct Accumulator;

template <>
struct Accumulator<float> {
    template <typename T>
    static float load(T x) {
        return to_float(x);
    }
    static float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
    static float widen(float x) { return x; }
};

template <>
struct Accumulator<__half> {
    static __half load(__half x) { return x; }
    static __half multiply_add(__half a, __half b, __half c) { return __hfma(a, b, c); }
    static float widen(__half x) { return __half2float(x); }
};

template <typename Acc, typename T>
Acc to_acc(T x) {
    return Accumulator<Acc>::load(x);
}

template <typename Acc>
Acc multiply_add(Acc a, Acc b, Acc c) {
    return Accumulator<Acc>::multiply_add(a, b, c);
}

inline void round_to(float x, float& out) { out = x; }
inline void round_to(float x, __half& out) { out = __float2half_rn(x); }
inline void round_to(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }

template <typename T, typename Acc>
T from_acc(Acc x) {
    T out;
    round_to(Accumulator<Acc>::widen(x), out);
    return out;
}

// The stored code of a number.
inline unsigned code_of(float x) { return __float_as_uint(x); }
inline unsigned code_of(__half x) { return __half_as_ushort(x); }
inline unsigned code_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

// The codes of two numbers, the first in the lower half: two roundings by one instruction where there
// is one (from sm_80).
template <typename T>
unsigned code_of_two(float low, float high);

template <>
inline unsigned code_of_two<__half>(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&both);
}

template <>
inline unsigned code_of_two<__nv_bfloat16>(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&both);
}

// The products of two numbers each, rounded once: by one instruction where there is one (bf16: from
// sm_80).
template <typename T>
unsigned products_of_two(unsigned a, unsigned b);

template <>
inline unsigned products_of_two<__half>(unsigned a, unsigned b) {
    const __half2 both =
        __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    return *reinterpret_cast<const unsigned*>(&both);
}

template <>
inline unsigned products_of_two<__nv_bfloat16>(unsigned a, unsigned b) {
    const __nv_bfloat162 both = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                        *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const unsigned*>(&both);
}

// The value of field `i` of a word that holds 4 / sizeof(T) codes, the first lowest.
template <typename T>
float field_to_float(unsigned word, int i);

template <>
inline float field_to_float<float>(unsigned word, int) {
    return __uint_as_float(word);
}

template <>
inline float field_to_float<__half>(unsigned word, int i) {
    return to_float(__ushort_as_half((unsigned short)(word >> (16 * i))));
}

// bf16 is the upper half of fp32.
template <>
inline float field_to_float<__nv_bfloat16>(unsigned word, int i) {
    return __uint_as_float(i ? word & 0xffff0000u : word << 16);
}

template <>
inline float field_to_float<__nv_fp8_e4m3>(unsigned word, int i) {
    __nv_fp8_e4m3 x;
    x.__x = (unsigned char)(word >> (8 * i));
    return to_float(x);
}

template <>
inline float field_to_float<__nv_fp8_e5m2>(unsigned word, int i) {
    __nv_fp8_e5m2 x;
    x.__x = (unsigned char)(word >> (8 * i));
    return to_float(x);
}
