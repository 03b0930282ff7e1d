// Index helpers of tiled kernels: rounding up, guarded loads, and the raster that maps a linear
// block index to a tile so that neighbours in time share operands in L2.
#pragma once

template <typename I>
constexpr I ceil_div(I a, I b) {
    return (a + b - 1) / b;
}

// `from[index]` where `inside` holds, else zero; nothing is read outside.
template <typename T>
T load_or_zero(const T* from, long long index, bool inside) {
    return inside ? from[index] : T{};
}

struct TileIndex {
    int row;
    int column;
};

// Grouped raster: tiles are visited column by column inside bands of kBand tile rows, so that the
// blocks in flight at one time cover a near-square patch of C and re-read few rows of A and columns
// of B. The last band may be lower.
template <int kBand>
TileIndex grouped_tile(int block, int tile_rows, int tile_columns) {
    const int per_band = kBand * tile_columns;
    const int band = block / per_band;
    const int inside = block - band * per_band;
    const int left = tile_rows - band * kBand;
    const int height = left < kBand ? left : kBand;
    const int column = inside / height;
    return {band * kBand + inside - column * height, column};
}
