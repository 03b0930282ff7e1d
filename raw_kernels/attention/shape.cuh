// What attention kernels have in common: the problem's shape, which keys a query sees, and the scale.
//
// Arrays are row-major: q, out (batch, heads, seq_q, head_dim); k, v (batch, kv_heads, seq_k, head_dim); lse
// (batch, heads, seq_q); bias (bias_planes, seq_q, seq_k) with 0 planes (none), 1 (shared) or one a head; mask
// (mask_planes, seq_q, seq_k), nonzero where a key may be seen, with 0, 1 or one plane a batch entry.
// Head h reads the keys of head h / (heads / kv_heads).
//
// Query i stands at key position i + seq_k - seq_q (aligned bottom right: the last query sees the last key).
// Causal: it sees no key behind its position. Window w: it sees keys nearer than w positions (0: no window).
#pragma once

#include "common/formats.cuh"
#include "ptx/approx.cuh"

constexpr float kLn2 = 0.693147180559945309f;
constexpr double kLog2e = 1.44269504088896340736;
constexpr float kLog2eF = float(kLog2e);

constexpr float kLargest = 3.402823466e38f;  // of float32

inline float minus_infinity() { return __uint_as_float(0xff800000u); }

struct Shape {
    int batch, heads, kv_heads, seq_q, seq_k, causal, window, bias_planes, mask_planes;
};

// Keys [first, last) that may be seen.
struct Keys {
    int first, last;
};

// The keys that the query sees as far as causality and window say; empty ranges have last <= first.
inline Keys seen_by(const Shape& s, int query) {
    const int position = query + s.seq_k - s.seq_q;
    Keys keys = {0, s.seq_k};
    if (s.window > 0) {
        keys.first = max(0, position - s.window + 1);
        keys.last = min(s.seq_k, position + s.window);
    }
    if (s.causal) keys.last = min(keys.last, position + 1);
    return keys;
}

// 1 / sqrt(head_dim) is split: 2^-kShift scales Q before the product, which costs no rounding (but where fp16
// becomes subnormal); the rest, in (1/2, 1], is folded with log2(e) into the exponent's multiply-add.
template <int kHeadDim>
struct Scale {
    static constexpr int shift() {
        int e = 0;
        while ((4 << (2 * e)) <= kHeadDim) ++e;
        return e;
    }
    static constexpr double root() {  // Newton's iteration, exact to float64
        double x = kHeadDim;
        for (int i = 0; i < 64; ++i) x = 0.5 * (x + kHeadDim / x);
        return x;
    }
    static constexpr int kShift = shift();
    static constexpr float kQuery = 1.0f / (1 << kShift);
    static constexpr float kWhole = float(1 / root());
    static constexpr float kExponent = float(kLog2e * (1 << kShift) / root());
};
