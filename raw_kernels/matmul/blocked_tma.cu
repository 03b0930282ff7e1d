// C (m, n) = A (m, k) B (k, n), all fp32, row-major, k and n multiples of 4; CUDA cores only; from
// sm_90.
//
// Idea: one thread asks TMA for the tiles that blocked.cu's threads copy. The registers that held
// addresses hold results: a thread owns up to twice as many, and multiplies more for each read of
// shared memory. No warp waits for the whole block: it waits for the bytes of its step, and the
// first warp asks for a stage again when every warp has told, through a second barrier, that it has
// read it.
//
// A lies in shared memory as rows of kBlockK floats whose 16-byte pieces TMA exchanges (swizzle),
// so that 8 neighbouring rows' pieces of one k lie in different banks without padding; B lies as it
// is. What varies in a thread's addresses is counted in bytes: counted in floats, NVRTC 12.9 and
// 13.0 put 60 more address instructions into a step. Results are stored through an exclusive-or
// with zero, which the compiler cannot know to be one: without it the 16-byte stores dictate the
// results' registers, and multiply-adds meet in register banks.
//
// The last round: where tiles are left that do not fill the card, the order in which blocks end
// decides whether two of them come to one multiprocessor, which then works a tile longer while
// others idle. Where twice as many blocks fit, each of these tiles is shared by two: one has the
// left half of the columns, one the right half, and a thread half of its results. A half copies
// boxes of a whole tile's width, so both go through the same tensor maps and the same stages.
//
// Tails: what lies outside of the matrices arrives as zeros, which add exactly nothing, and no
// result outside of C is stored. Order of the sum: one fused multiply-add per term, k ascending, as
// in blocked.cu: the bits are the same.
//
// Source: V. Volkov, "Better performance at lower occupancy", GTC 2010 (register tiles); PTX ISA,
// "Tensor copy", "mbarrier".
#include "matmul/register_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

// Tile rows that the raster visits together.
constexpr int kBand = 8;

// What a block computes: one of kParts equal parts of a tile's columns.
template <int kBlockM_, int kBlockN_, int kBlockK_, int kWarpsM_, int kWarpsN_, int kThreadM_,
          int kThreadN_, int kStages_, int kParts>
struct TmaTile {
    static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kBlockK = kBlockK_;
    static constexpr int kWarpsN = kWarpsN_, kWarps = kWarpsM_ * kWarpsN_;
    static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_ / kParts, kStages = kStages_;
    static constexpr int kWarpM = kBlockM / kWarpsM_, kWarpN = kBlockN / kParts / kWarpsN;
    static constexpr int kLanesM = kWarpM / kThreadM, kLanesN = kWarpN / kThreadN;
    static constexpr int kFloatsA = kBlockM * kBlockK;
    static constexpr int kStageBytes = 4 * (kFloatsA + kBlockK * kBlockN);

    static_assert(kLanesM == 8 && kLanesN == 4, "a thread's rows lie a whole swizzle apart");
    static_assert(kThreadN % 4 == 0, "fragments are read 16 bytes at a time");
    static_assert(kBlockK == 16, "rows of A are as wide as the swizzle of 64 bytes");
    static_assert(kWarpM % 8 == 0 && 4 * kFloatsA % 1024 == 0, "the swizzle repeats in 8 rows");

    // Piece p of row r of A lies at piece p ^ fold(r).
    static constexpr int fold(int row) { return (row >> 1) & 3; }
};

// The stages' barriers and the copies into them. A stage is full when its bytes have landed, and
// empty when every warp has read it.
template <typename Tile>
struct TileRing {
    const ptx::TensorMap &a, &b;
    unsigned stages;         // shared address of the first stage; the barriers lie behind the last
    int row, column;         // where the block's part of C begins

    unsigned full(int stage) const {
        return stages + Tile::kStages * Tile::kStageBytes + ptx::kBarrierBytes * stage;
    }
    unsigned empty(int stage) const { return full(Tile::kStages + stage); }

    void initialise() const {
#pragma unroll
        for (int s = 0; s < Tile::kStages; ++s) {
            ptx::mbarrier_init(full(s), 1);
            ptx::mbarrier_init(empty(s), Tile::kWarps);
        }
        ptx::mbarrier_init_fence();
    }

    // By one thread: ask for one step of K.
    void ask(int step, int stage) const {
        const unsigned to = stages + stage * Tile::kStageBytes;
        ptx::mbarrier_expect(full(stage), Tile::kStageBytes);
        ptx::tma_load(to, a, step * Tile::kBlockK, row, full(stage));
        ptx::tma_load(to + 4 * Tile::kFloatsA, b, column, step * Tile::kBlockK, full(stage));
    }
};

// A 16-byte piece of the thread's row i of A. `row` is the thread's first row in the stage, `fold`
// that of all its rows.
template <typename Tile>
float4 load_piece_of_a(const float* row, int fold, int i, int piece) {
    return load4(offset_bytes(row, 16 * (piece ^ fold)) + i * Tile::kLanesM * Tile::kBlockK);
}

// One k: the outer product of a column of A and a row of B, a column of C at a time. The direction
// turns with every column, and with every k, so that an operand of the last product is the next
// one's.
template <typename Tile>
void multiply_add(float4 (&acc)[Tile::kThreadM][Tile::kThreadN / 4],
                  const float4 (&a)[Tile::kThreadM], const float4 (&b)[Tile::kThreadN / 4], int k) {
#pragma unroll
    for (int j = 0; j < Tile::kThreadN; ++j) {
        const float y = (&b[j / 4].x)[j % 4];
#pragma unroll
        for (int s = 0; s < Tile::kThreadM; ++s) {
            const int i = (j + k) % 2 == 0 ? s : Tile::kThreadM - 1 - s;
            float& sum = (&acc[i][j / 4].x)[j % 4];
            sum = fmaf((&a[i].x)[k % 4], y, sum);
        }
    }
}

template <typename Tile>
void store_result(float* c, const float4 (&acc)[Tile::kThreadM][Tile::kThreadN / 4], int row,
                  int column, int m, int n) {
    const int zero = gridDim.y - 1;
#pragma unroll
    for (int i = 0; i < Tile::kThreadM; ++i) {
        if (row + i * Tile::kLanesM >= m) return;
        float* to = c + (size_t)(row + i * Tile::kLanesM) * n;
#pragma unroll
        for (int j = 0; j < Tile::kThreadN / 4; ++j) {
            const int first = column + j * 4 * Tile::kLanesN;
            if (first >= n) continue;
            float4 value = acc[i][j];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                (&value.x)[e] = __int_as_float(__float_as_int((&value.x)[e]) ^ zero);
            }
            store4(to + first, value);
        }
    }
}

// The part of C that begins at (row, column).
template <typename Tile>
void compute(const ptx::TensorMap& a, const ptx::TensorMap& b, float* c, int m, int n, int k,
             int row, int column) {
    constexpr int kBlockN = Tile::kBlockN, kBlockK = Tile::kBlockK, kStages = Tile::kStages;
    constexpr int kThreadM = Tile::kThreadM, kThreadN = Tile::kThreadN;
    extern __shared__ __align__(1024) float4 tma_shared[];
    const float* const shared = &tma_shared[0].x;
    const TileIndex place = place_in_block<Tile>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = ceil_div(k, kBlockK);
    const TileRing<Tile> ring = {a, b, ptx::shared_address(shared), row, column};

    if (threadIdx.x == 0) ring.initialise();
    __syncthreads();
    if (warp == 0 && ptx::elect_one()) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            if (s < steps) ring.ask(s, s);
        }
    }

    float4 acc[kThreadM][kThreadN / 4] = {};
    float4 frag_a[kThreadM], frag_b[2][kThreadN / 4];
    const int fold = Tile::fold(lane / 2);   // a warp's rows begin with a whole swizzle
    const float* read_a = shared + place.row * kBlockK;
    const float* read_b = shared + Tile::kFloatsA + place.column;

    ptx::mbarrier_wait(ring.full(0), 0);
#pragma unroll
    for (int i = 0; i < kThreadM; ++i) frag_a[i] = load_piece_of_a<Tile>(read_a, fold, i, 0);
    load_row_of_b<Tile>(frag_b[0], read_b);

    int stage = 0, parity = 0, offset = 0;   // the stage that is read, its phase, its bytes
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int kk = 0; kk < kBlockK; ++kk) {
            const int next = (kk + 1) % kBlockK;
            if (kk == kBlockK / 2 && warp == 0 && step >= 1 && step - 1 + kStages < steps) {
                // By now the other warps have read the step before: its stage is asked for again.
                const int last = stage == 0 ? kStages - 1 : stage - 1;
                ptx::mbarrier_wait(ring.empty(last), stage == 0 ? parity ^ 1 : parity);
                if (ptx::elect_one()) ring.ask(step - 1 + kStages, last);
            }
            if (next == 0) {
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(ring.empty(stage));
                if (step + 1 < steps) {   // behind the last step, what is read again is not used
                    if (++stage == kStages) stage = 0, parity ^= 1;
                    ptx::mbarrier_wait(ring.full(stage), parity);
                }
                offset = stage * Tile::kStageBytes;
            }
            load_row_of_b<Tile>(frag_b[(kk + 1) % 2],
                                offset_bytes(read_b, offset) + next * kBlockN);
            multiply_add<Tile>(acc, frag_a, frag_b[kk % 2], kk);
            if (kk % 4 == 3) {
#pragma unroll
                for (int i = 0; i < kThreadM; ++i) {
                    frag_a[i] =
                        load_piece_of_a<Tile>(offset_bytes(read_a, offset), fold, i, next / 4);
                }
            }
        }
    }
    store_result<Tile>(c, acc, row + place.row, column + place.column, m, n);
}

// Grid, along x alone: one block for each of the first tiles, two for each of the last ones, which
// number as many as there are more blocks than tiles. Dynamic shared memory: the stages, then two
// barriers a stage.
template <int kBlockM, int kBlockN, int kBlockK, int kWarpsM, int kWarpsN, int kThreadM,
          int kThreadN, int kStages, int kMinBlocks>
__global__ void __launch_bounds__(32 * kWarpsM * kWarpsN, kMinBlocks)
    matmul_blocked_tma(const __grid_constant__ ptx::TensorMap a,
                       const __grid_constant__ ptx::TensorMap b, float* __restrict__ c, int m,
                       int n, int k) {
    using Whole = TmaTile<kBlockM, kBlockN, kBlockK, kWarpsM, kWarpsN, kThreadM, kThreadN,
                          kStages, 1>;
    using Half = TmaTile<kBlockM, kBlockN, kBlockK, kWarpsM, kWarpsN, kThreadM, kThreadN,
                         kStages, 2>;
    const int tile_rows = ceil_div(m, kBlockM), tile_columns = ceil_div(n, kBlockN);
    const int halved = (int)gridDim.x - tile_rows * tile_columns;
    const int whole = tile_rows * tile_columns - halved, half = (int)blockIdx.x - whole;
    const TileIndex tile = grouped_tile<kBand>(half < 0 ? (int)blockIdx.x : whole + half / 2,
                                               tile_rows, tile_columns);
    const int row = tile.row * kBlockM;
    int column = tile.column * kBlockN;
    if (half < 0) return compute<Whole>(a, b, c, m, n, k, row, column);
    column += half % 2 * (kBlockN / 2);
    if (column < n) compute<Half>(a, b, c, m, n, k, row, column);
}
