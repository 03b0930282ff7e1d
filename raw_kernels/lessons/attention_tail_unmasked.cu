// A lesson, wrong on purpose: the keys with which the last tile is filled take part.
//
// They are zeros, so they add nothing to the product with V; but their scores are 0, their weights
// e^-max, and the sum by which the result is divided counts them.
// Caught where seq_k is no multiple of the tile (32 keys): exactly by the probe `uniform` (a mean over
// too many), and worst on the family `low`, where the absent keys take the whole weight.
#include "attention/simt.cuh"

struct TailUnmaskedRules : RightRules {
    static int keys(int seq_k) { return ceil_div(seq_k, SimtTile::kKeys) * SimtTile::kKeys; }
    static Keys seen(const Shape& shape, int query) {
        Keys seen = seen_by(shape, query);
        if (seen.last == shape.seq_k) seen.last = keys(shape.seq_k);
        return seen;
    }
};
