// The tile of the blocked fp32 matmul, and how one k step of A and B comes to shared memory.
//
// Both tiles lie there as in global memory: A as kBlockM rows of kBlockK floats and 4 of padding, B
// as kBlockK rows of kBlockN floats. Copies are asynchronous from sm_80 on; before, they wait in
// registers until the step is finished.
#pragma once

#include "common/tile.cuh"
#include "common/vec.cuh"
#include "ptx/async.cuh"
#include "ptx/shared.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr bool kHasCpAsync = true;
#else
constexpr bool kHasCpAsync = false;
#endif

// Everything about the tile that follows from its template arguments.
template <int kBlockM_, int kBlockN_, int kBlockK_, int kWarpsM_, int kWarpsN_, int kThreadM_,
          int kThreadN_, int kStages_>
struct BlockedTile {
    static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kBlockK = kBlockK_;
    static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
    static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_, kStages = kStages_;
    static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
    static constexpr int kWarpM = kBlockM / kWarpsM, kWarpN = kBlockN / kWarpsN;
    static constexpr int kLanesM = kWarpM / kThreadM, kLanesN = kWarpN / kThreadN;
    // Padding A's rows by one 16-byte access puts the pieces that 8 neighbouring rows hold at one k
    // into different banks.
    static constexpr int kStrideA = kBlockK + 4;
    static constexpr int kFloatsA = kBlockM * kStrideA;
    static constexpr int kFloatsStage = kFloatsA + kBlockK * kBlockN;
    // Both tiles are copied in 16-byte pieces, one a thread and pass.
    static constexpr int kPiecesA = kBlockK / 4, kPiecesB = kBlockN / 4;
    static constexpr int kRowsA = kThreads / kPiecesA, kRowsB = kThreads / kPiecesB;
    static constexpr int kPassesA = kBlockM / kRowsA, kPassesB = kBlockK / kRowsB;

    static_assert(kLanesM * kLanesN == 32 && (kLanesM == 4 || kLanesM == 8), "warp is 4x8 or 8x4");
    static_assert(kThreadN % 4 == 0 && kBlockK % 4 == 0, "fragments are read 16 bytes at a time");
    static_assert(kThreads % kPiecesA == 0 && kBlockM % kRowsA == 0, "A is copied in whole passes");
    static_assert(kThreads % kPiecesB == 0 && kBlockK % kRowsB == 0, "B is copied in whole passes");
};

// Copies one k step of A and B into one stage. Pieces whose source is not 16-byte aligned are
// copied float by float; B's then interleave, so that a warp still reads neighbours.
template <typename Tile, bool kWide>
struct TileCopy {
    const float *a, *b;   // the thread's k of the block's first row; its row of B
    int row_a, piece_a, last_a;   // the thread's row and piece in A's tile; last valid row there
    int row_b, piece_b, last_b;   // the same in B's tile; last valid column there
    int left;                     // terms of K from this step on; <= 0 beyond the end
    unsigned k, n;
    float4 held_a[Tile::kPassesA], held_b[Tile::kPassesB];   // used before sm_80 only

    TileCopy(const float* a_, const float* b_, TileIndex block, int m, int n_, int k_) {
        k = k_;
        n = n_;
        left = k_;
        row_a = threadIdx.x / Tile::kPiecesA;
        piece_a = threadIdx.x % Tile::kPiecesA;
        row_b = threadIdx.x / Tile::kPiecesB;
        piece_b = threadIdx.x % Tile::kPiecesB;
        const int first_row = block.row * Tile::kBlockM;
        const int first_column = block.column * Tile::kBlockN;
        last_a = m - 1 - first_row;
        last_b = n_ - 1 - first_column;
        a = a_ + (size_t)first_row * k + 4 * piece_a;
        b = b_ + (size_t)row_b * n + first_column;
    }

    void advance() {
        a += Tile::kBlockK;
        b += (size_t)Tile::kBlockK * n;
        left -= Tile::kBlockK;
    }

    int column_b(int j) const { return piece_b + j * Tile::kPiecesB; }

    static float4* piece_of_a(float* stage, int row, int piece) {
        return reinterpret_cast<float4*>(stage + row * Tile::kStrideA) + piece;
    }

    static float* row_of_b(float* stage, int row) {
        return stage + Tile::kFloatsA + row * Tile::kBlockN;
    }

    void pass_a(float* stage, int pass) {
        const int row = row_a + pass * Tile::kRowsA;
        float4* to = piece_of_a(stage, row, piece_a);
        const float* from = offset_bytes(a, (size_t)(unsigned)min(row, last_a) * (4 * k));
        if constexpr (kWide) {
            copy_piece(to, from, held_a[pass], 4 * piece_a < left);
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                copy_float(&to->x + j, from + j, (&held_a[pass].x)[j], 4 * piece_a + j < left);
            }
        }
    }

    void pass_b(float* stage, int pass) {
        const int row = row_b + pass * Tile::kRowsB;
        float* to = row_of_b(stage, row);
        const float* from = offset_bytes(b, (size_t)(unsigned)(pass * Tile::kRowsB) * (4 * n));
        if constexpr (kWide) {
            copy_piece(reinterpret_cast<float4*>(to) + piece_b, from + min(4 * piece_b, last_b - 3),
                       held_b[pass], row < left);
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                copy_float(to + column_b(j), from + min(column_b(j), last_b), (&held_b[pass].x)[j],
                           row < left);
            }
        }
    }

    static void copy_piece(float4* to, const float* from, float4& held, bool inside) {
        if constexpr (kHasCpAsync) {
            ptx::cp_async_16(ptx::shared_address(to), from, inside ? 16 : 0);
        } else {
            held = inside ? load4(from) : float4{};
        }
    }

    static void copy_float(float* to, const float* from, float& held, bool inside) {
        if constexpr (kHasCpAsync) {
            ptx::cp_async_4(ptx::shared_address(to), from, inside ? 4 : 0);
        } else {
            held = inside ? *from : 0.0f;
        }
    }

    void fetch(float* stage) {
#pragma unroll
        for (int p = 0; p < Tile::kPassesB; ++p) pass_b(stage, p);
#pragma unroll
        for (int p = 0; p < Tile::kPassesA; ++p) pass_a(stage, p);
    }

    // Closes the step: the copies form a group, or (before sm_80) leave the registers now.
    void finish(float* stage) {
        if constexpr (!kHasCpAsync) {
#pragma unroll
            for (int p = 0; p < Tile::kPassesA; ++p) {
                *piece_of_a(stage, row_a + p * Tile::kRowsA, piece_a) = held_a[p];
            }
#pragma unroll
            for (int p = 0; p < Tile::kPassesB; ++p) {
                float* row = row_of_b(stage, row_b + p * Tile::kRowsB);
                if constexpr (kWide) {
                    store4(row + 4 * piece_b, held_b[p]);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; ++j) row[column_b(j)] = (&held_b[p].x)[j];
                }
            }
        }
        if constexpr (kHasCpAsync) ptx::cp_async_commit();
        advance();
    }
};
