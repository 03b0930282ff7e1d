// A lesson, wrong on purpose: hidden keys get the score 0 instead of -inf.
//
// e^0 = 1: a hidden key still weighs as much as a seen one whose score is 0, and far more than all of
// them where the seen scores are negative. What was meant is a weight of 0, and e^-inf is exactly that.
// Caught wherever a key is hidden; worst on the family `low` (scores -1000 to -100), where hidden keys
// take the whole weight.
#include "attention/simt.cuh"

struct MaskZeroRules : RightRules {
    static float hide(float score) { return 0.0f; }
};
