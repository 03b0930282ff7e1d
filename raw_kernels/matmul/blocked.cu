// C (m, n) = A (m, k) B (k, n), all fp32, row-major, any m, n, k >= 1; CUDA cores only.
//
// Idea: a thread owns kThreadM x kThreadN results in registers, so each float read from shared
// memory feeds many multiply-adds; a warp's threads form a near-square tile, so its 16-byte reads
// are broadcasts without bank conflicts. A is kept as it lies: one 16-byte read brings four k of
// one row, so nothing is transposed and whole pieces are copied. The tiles of the next kStages - 1
// steps are on their way (cp.async, or registers before sm_80) while the current one is multiplied.
//
// Tails: rows and columns beyond the matrix are clamped to the last one (their results are never
// stored); beyond k both tiles are filled with zeros, which add exactly nothing. With kWide, k and
// n are multiples of 4 and global memory is accessed 16 bytes at a time, else 4. Limit: k and n <
// 2^30, so that a row's length in bytes fits 32 bits. Order of the sum: one fused multiply-add per
// term, k ascending.
//
// Source: V. Volkov, "Better performance at lower occupancy", GTC 2010 (register tiles); NVIDIA
// CUTLASS documentation, "Efficient GEMM in CUDA" (warp tiles, multistage pipeline).
#include "matmul/blocked_copy.cuh"
#include "matmul/register_tile.cuh"

// Tile rows that the raster visits together.
constexpr int kBand = 8;

// The oldest of kStages - 1 steps on their way has arrived, for all threads.
template <int kStages>
void wait_for_oldest() {
    if constexpr (kHasCpAsync) ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
}

// One k: the outer product of a column of A and a row of B. At the last k that a held piece of A
// serves, each row's next piece is read as soon as the old one is used up (`refill`).
template <typename Tile>
void multiply_add(float4 (&acc)[Tile::kThreadM][Tile::kThreadN / 4], float4 (&a)[Tile::kThreadM],
                  const float4 (&b)[Tile::kThreadN / 4], int k, const float* refill) {
#pragma unroll
    for (int i = 0; i < Tile::kThreadM; ++i) {
        const float x = (&a[i].x)[k];
#pragma unroll
        for (int s = 0; s < Tile::kThreadN; ++s) {
            // Serpentine: the operand of the last product is reused by the next one.
            const int j = i % 2 == 0 ? s : Tile::kThreadN - 1 - s;
            float& sum = (&acc[i][j / 4].x)[j % 4];
            sum = fmaf(x, (&b[j / 4].x)[j % 4], sum);
        }
        if (k == 3) a[i] = load4(refill + i * Tile::kLanesM * Tile::kStrideA);
    }
}

template <typename Tile, bool kWide>
void store_result(float* c, const float4 (&acc)[Tile::kThreadM][Tile::kThreadN / 4], int row,
                  int column, int m, int n) {
#pragma unroll
    for (int i = 0; i < Tile::kThreadM; ++i) {
        if (row + i * Tile::kLanesM >= m) return;
        float* to = c + (size_t)(row + i * Tile::kLanesM) * n;
#pragma unroll
        for (int j = 0; j < Tile::kThreadN / 4; ++j) {
            const int first = column + j * 4 * Tile::kLanesN;
            if constexpr (kWide) {
                if (first < n) store4(to + first, acc[i][j]);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (first + e < n) to[first + e] = (&acc[i][j].x)[e];
                }
            }
        }
    }
}

// One tile of C by one block.
template <typename Tile, bool kWide>
void compute_tile(const float* a, const float* b, float* c, float* shared, TileIndex block, int m,
                  int n, int k) {
    constexpr int kStages = Tile::kStages;
    const TileIndex place = place_in_block<Tile>();
    TileCopy<Tile, kWide> copy(a, b, block, m, n, k);
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
        copy.fetch(shared + s * Tile::kFloatsStage);
        copy.finish(shared + s * Tile::kFloatsStage);
    }
    wait_for_oldest<kStages>();

    float4 acc[Tile::kThreadM][Tile::kThreadN / 4] = {};
    float4 frag_a[Tile::kThreadM], frag_b[2][Tile::kThreadN / 4];
    const float* read_a = shared + place.row * Tile::kStrideA;
    const float* read_b = shared + Tile::kFloatsA + place.column;
#pragma unroll
    for (int i = 0; i < Tile::kThreadM; ++i) {
        frag_a[i] = load4(read_a + i * Tile::kLanesM * Tile::kStrideA);
    }
    load_row_of_b<Tile>(frag_b[0], read_b);

    int read = 0, write = kStages - 1;
    for (int left = k; left > 0; left -= Tile::kBlockK) {
        float* filling = shared + write * Tile::kFloatsStage;
#pragma unroll
        for (int kk = 0; kk < Tile::kBlockK; ++kk) {
            const int next = (kk + 1) % Tile::kBlockK;
            if (kk == 0) copy.fetch(filling);
            if (next == 0) {
                copy.finish(filling);
                wait_for_oldest<kStages>();
                write = read;
                read = read + 1 == kStages ? 0 : read + 1;
                read_a = shared + read * Tile::kFloatsStage + place.row * Tile::kStrideA;
                read_b = shared + read * Tile::kFloatsStage + Tile::kFloatsA + place.column;
            }
            load_row_of_b<Tile>(frag_b[(kk + 1) % 2], read_b + next * Tile::kBlockN);
            multiply_add<Tile>(acc, frag_a, frag_b[kk % 2], kk % 4, read_a + next);
        }
    }
    store_result<Tile, kWide>(c, acc, block.row * Tile::kBlockM + place.row,
                              block.column * Tile::kBlockN + place.column, m, n);
}

template <int kBlockM, int kBlockN, int kBlockK, int kWarpsM, int kWarpsN, int kThreadM,
          int kThreadN, int kStages, int kMinBlocks, bool kWide>
__global__ void __launch_bounds__(32 * kWarpsM * kWarpsN, kMinBlocks)
    matmul_blocked(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                   int m, int n, int k) {
    using Tile =
        BlockedTile<kBlockM, kBlockN, kBlockK, kWarpsM, kWarpsN, kThreadM, kThreadN, kStages>;
    static_assert(kHasCpAsync || kStages == 2, "register staging is two stages deep");
    extern __shared__ float4 blocked_shared[];
    float* const shared = &blocked_shared[0].x;
    const TileIndex block =
        grouped_tile<kBand>(blockIdx.x, ceil_div(m, kBlockM), ceil_div(n, kBlockN));
    compute_tile<Tile, kWide>(a, b, c, shared, block, m, n, k);
}
