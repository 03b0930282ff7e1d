// C (m, n) = A (m, k) B (k, n), all row-major float32, at float32's accuracy on Hopper's warpgroup tensor cores.
//
// The idea: that of mma_3xtf32.cu, three tf32 products for one of float32, on wgmma.cu's road: TMA brings slabs, a
// warpgroup loads and two multiply, blocks persist and share B in pairs. wgmma takes B from shared memory alone, and
// K-major, so a launch before turns B and leaves its high and its low parts as two matrices. A comes as it is: its
// fragments go through registers, where they are split, and from there into the multiplication.
//
// hi hi of kChained instructions is a sum from zero, which the CUDA cores add to a float32 sum; while they do, and
// split the next fragment, the tensor cores work on lo hi + hi lo, whose sum is theirs to the end.
//
// Source: CUTLASS, example 27 (3xTF32); H. Ootomo and R. Yokota, IJHPCA 36(4), 2022; PTX ISA, "wgmma", "Tensor copy".
#include "matmul/split.cuh"
#include "matmul/wgmma_store.cuh"

// A stage holds a slab of A and of both parts of B.
template <int kBlockM_, int kBlockN_, int kStages_, int kPairM_, int kBand_, int kChained_>
struct SplitTile : WgmmaTile<ptx::tf32, false, kBlockM_, kBlockN_, kStages_, 2, kPairM_, 1, kBand_> {
    using Whole = WgmmaTile<ptx::tf32, false, kBlockM_, kBlockN_, kStages_, 2, kPairM_, 1, kBand_>;
    static constexpr int kStageBytes = Whole::kABytes + 2 * Whole::kBBytes;
    static constexpr int kRingBytes = kStages_ * kStageBytes;
    static constexpr int kChained = kChained_;  // instructions
    static_assert(Whole::kMTiles == 1 && Whole::kSteps % kChained == 0 && Whole::kSteps % 2 == 0, "see SplitSums");
};

// One thread fills the stages, tile after tile; a pair of blocks brings half of B each.
template <class T>
void produce_split(Ring<T> ring, Schedule<T> schedule, const ptx::TensorMap& a, const ptx::TensorMap& b_high,
                   const ptx::TensorMap& b_low, int slabs) {
    constexpr unsigned short kBoth = 3;
    int row, column;
    while (schedule.take(row, column)) {
        const int half = T::kPairM > 1 ? schedule.rank * T::kBBoxColumns : 0;
#pragma unroll 1
        for (int slab = 0; slab < slabs; ++slab) {
            ptx::mbarrier_wait(ring.empty(ring.slot), ring.phase ^ 1);
            const unsigned full = ring.full(ring.slot), high = ring.b() + half * T::kRowBytes, low = high + T::kBBytes;
            const int depth = slab * T::kSlab;
            ptx::mbarrier_expect(full, T::kStageBytes);
            ptx::tma_load(ring.a(), a, depth, row, full);
            if constexpr (T::kPairM > 1) {
                ptx::tma_load_multicast(high, b_high, depth, column + half, full, kBoth);
                ptx::tma_load_multicast(low, b_low, depth, column + half, full, kBoth);
            } else {
                ptx::tma_load(high, b_high, depth, column, full);
                ptx::tma_load(low, b_low, depth, column, full);
            }
            ring.advance();
        }
    }
}

// A warpgroup's 64 rows of C in registers; `of` is the sum of hi hi, and in the end of all.
template <class T>
struct SplitSums : Sums<T> {
    using Instruction = ptx::WgmmaRegisters<ptx::tf32, T::kBlockN>;
    static constexpr int kSums = T::kBlockN / 2;
    float part[kSums];   // of hi hi, in the tensor cores' hands
    float cross[kSums];  // of lo hi + hi lo, times kLowScale
    Parts<4> a[2];       // of two steps: one is split while the other is multiplied
    unsigned a_lane;     // bytes from the start of a stage to what this lane reads

    explicit SplitSums(int group) {
        const int lane = threadIdx.x % 32, r = lane % 8, matrix = lane / 8, warp = threadIdx.x / 32 % 4;
        const int row = group * T::kGroupM + warp * 16 + r + matrix % 2 * 8;
        a_lane = row * T::kRowBytes + ((matrix / 2 ^ r) << 4);
    }

    void read(unsigned (&words)[4], unsigned stage, int step) const {
        ptx::ldmatrix_x4(words, stage + (a_lane ^ step * 32));
    }

    // Starts one step: 8 terms of k from `high` and `low` parts of B.
    void multiply(int step, unsigned long long high, unsigned long long low, bool first) {
        Parts<4>& now = a[step % 2];
        ptx::pin(now.high), ptx::pin(now.low);
        ptx::wgmma_fence();
        Instruction::multiply(part, now.high, high + step * 2, step % T::kChained != 0);
        ptx::wgmma_commit();
        Instruction::multiply(cross, now.low, high + step * 2, !first);
        Instruction::multiply(cross, now.high, low + step * 2, 1);
        ptx::wgmma_commit();
    }

    void promote() {
        ptx::pin(part);
#pragma unroll
        for (int j = 0; j < kSums; ++j) this->of[0][j] += part[j];
        ptx::pin(this->of[0]);
    }

    // The whole sums; whether all are finite.
    bool finish() {
        bool all_finite = true;
        ptx::pin(cross);
#pragma unroll
        for (int j = 0; j < kSums; ++j) {
            this->of[0][j] = fmaf(cross[j], 1.0f / kLowScale, this->of[0][j]);
            all_finite &= finite(this->of[0][j]);
        }
        return all_finite;
    }
};

// Multiplies all slabs of a tile. While lo hi + hi lo of a step is in flight, hi hi of it is added, the fragment of
// the next one is split, and then its multiplications are started.
template <class T>
void consume(Ring<T>& ring, SplitSums<T>& sums, unsigned lane, int slabs) {
#pragma unroll
    for (int j = 0; j < SplitSums<T>::kSums; ++j) sums.of[0][j] = 0.0f;
    unsigned words[4], before = 0;
    ptx::mbarrier_wait(ring.full(ring.slot), ring.phase);
    sums.read(words, ring.a(), 0);
    sums.a[0].split(words);
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab) {
        const unsigned stage = ring.a(), at = ring.slot;
        const auto high = ptx::matrix_descriptor(ring.b(), 16, 8 * T::kRowBytes);
        const auto low = ptx::matrix_descriptor(ring.b() + T::kBBytes, 16, 8 * T::kRowBytes);
        ring.advance();
#pragma unroll
        for (int step = 0; step < T::kSteps; ++step) {
            sums.multiply(step, high, low, slab == 0 && step == 0);
            const bool last = step == T::kSteps - 1;
            if (!last) {
                sums.read(words, stage, step + 1);
            } else if (slab + 1 < slabs) {
                ptx::mbarrier_wait(ring.full(ring.slot), ring.phase);
                sums.read(words, ring.a(), 0);
            }
            ptx::wgmma_wait<1>();
            if (step == 0 && slab > 0) ring.release(before, lane);
            if (step % T::kChained == T::kChained - 1) sums.promote();
            sums.a[(step + 1) % 2].split(words);
        }
        before = at;
    }
    ptx::wgmma_wait<0>();
    ring.release(before, lane);
}

// a_whole, b_whole: A and B themselves, for results that are not finite.
// Grid: any multiple of T::kCluster; block: T::kThreads; dynamic shared memory: T::kRingBytes + T::kBarriersBytes.
template <class T>
__global__ void __cluster_dims__(T::kCluster, 1, 1) __launch_bounds__(T::kThreads, 1)
    matmul_wgmma_3xtf32(const __grid_constant__ ptx::TensorMap a, const __grid_constant__ ptx::TensorMap b_high,
                        const __grid_constant__ ptx::TensorMap b_low, const float* a_whole, const float* b_whole,
                        float* c, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned stages = ptx::shared_address(memory);
    Ring<T> ring(stages, stages + T::kRingBytes);
    const unsigned lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
    const int slabs = ceil_div(k, T::kSlab);

    if (threadIdx.x == 0) ring.initialise();
    if constexpr (T::kCluster > 1) {
        ptx::cluster_arrive();
        ptx::cluster_wait();
    } else {
        __syncthreads();
    }
    Schedule<T> schedule(m, n, T::kCluster > 1 ? ptx::cluster_rank() : 0);

    if (group == T::kConsumers) {
        ptx::registers_decrease<24>();
        if (warp == T::kConsumers * 4 && ptx::elect_one()) {
            ptx::tma_prefetch(a);
            ptx::tma_prefetch(b_high);
            ptx::tma_prefetch(b_low);
            produce_split(ring, schedule, a, b_high, b_low, slabs);
        }
    } else {
        ptx::registers_increase<240>();
        SplitSums<T> sums(group);
        unsigned turn = 0;
        int row, column;
        while (schedule.take(row, column)) {
            row += group * T::kGroupM;
            consume(ring, sums, lane, slabs);
            const bool all_finite = sums.finish();
            StoreRegisters<f32>::store(sums, c, 0, turn, group, row, column, m, n);
            if (!all_finite) sum_again<16, T::kBlockN>(a_whole, b_whole, c, m, n, k, row + warp % 4 * 16, column);
        }
    }
    if constexpr (T::kCluster > 1) {  // nobody leaves while the other block's loads and arrivals may come
        __syncwarp();
        ptx::cluster_arrive();
        ptx::cluster_wait();
    }
}

// high, low (columns, rows) = both parts of the transpose of from (rows, columns), both multiples of 4. Four
// elements at a time either way: a warp reads and writes two runs of kEdge.
// Grid: one block a tile of kEdge x kEdge, columns fastest; block: kThreads.
template <int kEdge, int kThreads>
__global__ void __launch_bounds__(kThreads)
    split_transposed(const float* from, float* high, float* low, int rows, int columns) {
    constexpr int kAcross = kEdge / 4, kRows = kThreads / kAcross, kRounds = kEdge / kRows;
    static_assert(kRows * kRounds == kEdge, "whole rounds");
    __shared__ unsigned tile[kEdge][kEdge + 1];
    const int across = ceil_div(columns, kEdge), quad = threadIdx.x % kAcross * 4, line = threadIdx.x / kAcross;
    const int row0 = static_cast<int>(blockIdx.x) / across * kEdge;
    const int column0 = static_cast<int>(blockIdx.x) % across * kEdge;
    uint4 read[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int row = row0 + line + i * kRows, column = column0 + quad;
        const bool inside = row < rows && column < columns;
        const long long at = static_cast<long long>(row) * columns + column;
        read[i] = load_or_zero(reinterpret_cast<const uint4*>(from), at / 4, inside);
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        unsigned* const to = tile[line + i * kRows] + quad;
        to[0] = read[i].x, to[1] = read[i].y, to[2] = read[i].z, to[3] = read[i].w;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int column = line + i * kRows;
        if (column0 + column >= columns || row0 + quad >= rows) continue;
        const unsigned words[4] = {tile[quad][column], tile[quad + 1][column], tile[quad + 2][column],
                                   tile[quad + 3][column]};
        Parts<4> parts;
        parts.split(words);
        const long long at = (static_cast<long long>(column0 + column) * rows + row0 + quad) / 4;
        reinterpret_cast<uint4*>(high)[at] = make_uint4(parts.high[0], parts.high[1], parts.high[2], parts.high[3]);
        reinterpret_cast<uint4*>(low)[at] = make_uint4(parts.low[0], parts.low[1], parts.low[2], parts.low[3]);
    }
}
