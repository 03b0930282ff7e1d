// Where a thread's results lie in a block's tile of C, and how it reads its columns of B.
//
// A tile type gives kWarpsN (warps along N), kWarpM and kWarpN (results of a warp), kLanesM and
// kLanesN (threads of a warp along M and N, 8 and 4 or 4 and 8), kThreadN (columns of a thread).
#pragma once

#include "common/tile.cuh"
#include "common/vec.cuh"

// The thread's first row and column in the block. The 4-wide side of the warp takes lane bits 0
// and 4, the 8-wide side bits 1 to 3: neighbouring lanes then share one operand's address, which
// 16-byte reads merge.
template <typename Tile>
TileIndex place_in_block() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int narrow = (lane & 1) | ((lane >> 4) << 1), broad = (lane >> 1) & 7;
    const int lane_m = Tile::kLanesM == 8 ? broad : narrow;
    const int lane_n = Tile::kLanesM == 8 ? narrow : broad;
    return {warp / Tile::kWarpsN * Tile::kWarpM + lane_m,
            warp % Tile::kWarpsN * Tile::kWarpN + 4 * lane_n};
}

// The thread's columns are pieces of 4 neighbours, 4 * kLanesN apart.
template <typename Tile>
void load_row_of_b(float4 (&fragment)[Tile::kThreadN / 4], const float* from) {
#pragma unroll
    for (int j = 0; j < Tile::kThreadN / 4; ++j) fragment[j] = load4(from + j * 4 * Tile::kLanesN);
}
