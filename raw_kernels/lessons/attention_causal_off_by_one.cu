// A lesson, wrong on purpose: causality lets a query see one key too many.
//
// `key <= position + 1` instead of `key <= position`: in training the model sees the answer.
// Caught on every family with --causal, and exactly by the probe `uniform`: the mean is that of one
// key more. The last query, which sees every key anyway, is right.
#include "attention/simt.cuh"

struct CausalOffByOneRules : RightRules {
    static Keys seen(const Shape& shape, int query) {
        Keys keys = seen_by(shape, query);
        if (shape.causal) keys.last = min(max(keys.last, 0) + 1, shape.seq_k);
        return keys;
    }
};
