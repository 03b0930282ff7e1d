// The approximate instructions, by name: what is written is what runs, on every capability.
// Source: PTX ISA, "ex2", "rcp", "rsqrt".
#pragma once

namespace ptx {

// 2^x within 2 ulp; results below 2^-126 are zero.
inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x within 1 ulp.
inline float rcp_approx(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / sqrt(x) within 2 ulp.
inline float rsqrt_approx(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace ptx
