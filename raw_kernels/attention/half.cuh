// Pairs of 16-bit operands in a 32-bit word, the first lowest: what an mma fragment is made of.
#pragma once

#include "common/formats.cuh"
#include "ptx/mma.cuh"

template <class Operand>
struct Half;

template <>
struct Half<ptx::f16> {
    static unsigned pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    }
    static float low(unsigned word) { return field_to_float<__half>(word, 0); }
    static float high(unsigned word) { return field_to_float<__half>(word, 1); }
};

template <>
struct Half<ptx::bf16> {
    static unsigned pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const unsigned*>(&pair);
    }
    static float low(unsigned word) { return field_to_float<__nv_bfloat16>(word, 0); }
    static float high(unsigned word) { return field_to_float<__nv_bfloat16>(word, 1); }
};

// Both elements times a factor, rounded.
template <class Operand>
unsigned scaled(unsigned word, float factor) {
    return Half<Operand>::pack(Half<Operand>::low(word) * factor, Half<Operand>::high(word) * factor);
}
