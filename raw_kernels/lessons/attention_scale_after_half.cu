// A lesson, wrong on purpose: the product of Q and K is kept in half and scaled afterwards.
//
// Half ends at 65504: |q.k| beyond it is inf, though the scaled score fits with ease, and inf - inf is
// NaN. With q = k = 32 in 64 columns the product is 65536; the score is 8192.
// Caught on the family `overflow` (q.k about 2^17); on the others by its rounding to 11 bits.
#include "attention/simt.cuh"

struct ScaleAfterHalfRules : RightRules {
    static float scale_query(float q, float scale) { return q; }
    static float scale_score(float s, float scale) {
        return __half2float(__float2half_rn(s)) * scale;
    }
};
