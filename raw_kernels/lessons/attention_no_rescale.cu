// A lesson, wrong on purpose: an online softmax that is never rescaled.
//
// When a later tile has a larger maximum, what was summed relative to the old one must be multiplied
// by e^(old - new). Without that, early keys keep a weight that is too large by e^(new - old).
// Caught on every family of more than one tile (32 keys); worst on `ascending`, where the maximum
// comes last; invisible where it comes first.
#include "attention/simt.cuh"

struct NoRescaleRules : RightRules {
    static float rescale(float factor) { return factor == 0.0f ? 0.0f : 1.0f; }
};
