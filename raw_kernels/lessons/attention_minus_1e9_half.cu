// A lesson, wrong on purpose: the finite mask -1e9, added in half.
//
// Half ends at 65504, so -1e9 becomes -inf. A row that sees no key, so far or at all, then has the
// maximum -inf, and -inf - -inf is NaN. In float32 the same mask is finite, and such a row becomes the
// mean of its V: wrong too, but not NaN. What was meant is 0.
// Caught wherever a query sees no key of the first tile: any family, with a mask.
#include "attention/simt.cuh"

struct MinusBillionHalfRules : RightRules {
    static float hide(float score) {
        return __half2float(__hadd(__float2half_rn(score), __float2half_rn(-1e9f)));
    }
    static float base(float largest) { return largest; }
};
