// Tiles, stages and the ring of barriers that the wgmma kernels share; see matmul/wgmma.cu.
#pragma once

#include "common/tile.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

// A block's share of the work. Sizes along k are bytes: a stage holds 128 bytes of k of A and of B, which is the
// width of the swizzle, and a wgmma takes 32 of them. kNMajor: B is (k, n) as C = A B has it, which wgmma takes of
// 16-bit elements only; else B comes transposed, (n, k).
// kPairM (kPairN) = 2: the two blocks of a cluster own tiles below (beside) each other and load the operand that
// they share half each, for both.
template <class Operand_, bool kNMajor_, int kBlockM_, int kBlockN_, int kStages_, int kConsumers_, int kPairM_, int kPairN_, int kBand_>
struct WgmmaTile {
    using Operand = Operand_;
    static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kStages = kStages_, kConsumers = kConsumers_;
    static constexpr int kPairM = kPairM_, kPairN = kPairN_, kBand = kBand_;
    static constexpr int kCluster = kPairM * kPairN;
    static constexpr int kWarpgroup = 128;  // threads
    static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

    static constexpr int kSize = sizeof(typename Operand::Storage);
    static constexpr int kRowBytes = 128;
    static constexpr int kSlab = kRowBytes / kSize;  // elements of k a stage
    static constexpr int kSteps = 4;                 // multiplications along k a stage
    static constexpr bool kNMajor = kNMajor_;
    static constexpr int kGroupM = kBlockM / kConsumers;  // rows of C a warpgroup
    static constexpr int kMTiles = kGroupM / 64;
    static constexpr int kABytes = kBlockM * kRowBytes;
    static constexpr int kBBytes = kBlockN * kRowBytes;
    static constexpr int kStageBytes = kABytes + kBBytes;
    static constexpr int kRingBytes = kStages * kStageBytes;
    static constexpr int kBarriersBytes = 2 * kStages * static_cast<int>(ptx::kBarrierBytes);

    // B arrives in boxes: N-major, 64 columns of kSlab rows each; K-major, all at once.
    static constexpr int kBBoxColumns = kNMajor ? 64 : kBlockN / kPairM;
    static constexpr int kBBoxes = kBlockN / kBBoxColumns;
    static constexpr int kBBoxBytes = kBBoxColumns * kRowBytes;
    static constexpr int kABoxRows = kBlockM / kPairN;

    static_assert(kSize == 2 || !kNMajor, "wgmma takes N-major operands of 16 bits only");
    static_assert(kMTiles * 64 * kConsumers == kBlockM, "64 rows a wgmma");
    static_assert(kCluster <= 2 && kBBoxes % kPairM == 0, "a pair of blocks, each loading the same share");
    static_assert(kABoxRows <= 256 && kABoxRows % 8 == 0 && kBBoxColumns <= 256, "limits of a TMA box");
};

// Stages in shared memory, each with a barrier that says it is full and one that says it is empty. Producer and
// consumers walk it alike; a phase ends with every round.
template <class T>
struct Ring {
    unsigned stages, barriers;
    unsigned slot = 0, phase = 0;

    Ring(unsigned stages_, unsigned barriers_) : stages(stages_), barriers(barriers_) {}

    unsigned full(unsigned at) const { return barriers + at * ptx::kBarrierBytes; }
    unsigned empty(unsigned at) const { return barriers + (T::kStages + at) * ptx::kBarrierBytes; }
    unsigned a() const { return stages + slot * T::kStageBytes; }
    unsigned b() const { return a() + T::kABytes; }

    void advance() {
        if (++slot == T::kStages) slot = 0, phase ^= 1;
    }

    // By one thread. A stage is full when its producer has announced the bytes and they have come; it is empty when
    // every warp that reads it has let go, those of the other block included, into which its loads write too.
    void initialise() const {
        for (int s = 0; s < T::kStages; ++s) {
            ptx::mbarrier_init(full(s), 1);
            ptx::mbarrier_init(empty(s), T::kConsumers * 4 * T::kCluster);
        }
        ptx::mbarrier_init_fence();
    }

    // By every warp that has read stage `at`.
    void release(unsigned at, unsigned lane) const {
        if constexpr (T::kCluster == 1) {
            if (lane == 0) ptx::mbarrier_arrive(empty(at));
        } else {
            if (lane < T::kCluster) ptx::mbarrier_arrive_cluster(empty(at), lane);
        }
    }
};

// Which tiles a block computes: every step-th pair of tiles (or single tile), in the grouped raster.
template <class T>
struct Schedule {
    int rows, columns;  // of pairs
    int next, step;
    int rank;

    Schedule(int m, int n, int rank_) : rank(rank_) {
        rows = ceil_div(m, T::kBlockM * T::kPairM);
        columns = ceil_div(n, T::kBlockN * T::kPairN);
        next = blockIdx.x / T::kCluster;
        step = gridDim.x / T::kCluster;
    }

    // The first element of the next tile; false behind the last. The second tile of a pair may lie outside C.
    bool take(int& row, int& column) {
        if (next >= rows * columns) return false;
        const TileIndex at = grouped_tile<T::kBand>(next, rows, columns);
        row = (at.row * T::kPairM + (T::kPairM > 1 ? rank : 0)) * T::kBlockM;
        column = (at.column * T::kPairN + (T::kPairN > 1 ? rank : 0)) * T::kBlockN;
        next += step;
        return true;
    }
};

// One thread asks for a slab of A and of B, whose bytes the stage's barrier counts.
template <class T>
void load_slab(const Ring<T>& ring, const ptx::TensorMap& a, const ptx::TensorMap& b, int row, int column, int slab,
               int rank) {
    constexpr unsigned short kBoth = 3;
    const unsigned full = ring.full(ring.slot), to_a = ring.a(), to_b = ring.b();
    const int depth = slab * T::kSlab;
    ptx::mbarrier_expect(full, T::kStageBytes);
    if constexpr (T::kPairN > 1) {
        const int half = rank * T::kABoxRows;
        ptx::tma_load_multicast(to_a + half * T::kRowBytes, a, depth, row + half, full, kBoth);
    } else {
        ptx::tma_load(to_a, a, depth, row, full);
    }
#pragma unroll
    for (int i = 0; i < T::kBBoxes / T::kPairM; ++i) {
        const int box = T::kPairM > 1 ? rank * (T::kBBoxes / T::kPairM) + i : i;
        const int first = column + box * T::kBBoxColumns;
        const int x = T::kNMajor ? first : depth, y = T::kNMajor ? depth : first;
        const unsigned to = to_b + box * T::kBBoxBytes;
        if constexpr (T::kPairM > 1) {
            ptx::tma_load_multicast(to, b, x, y, full, kBoth);
        } else {
            ptx::tma_load(to, b, x, y, full);
        }
    }
}

// One thread fills the stages, tile after tile.
template <class T>
void produce(Ring<T> ring, Schedule<T> schedule, const ptx::TensorMap& a, const ptx::TensorMap& b, int slabs) {
    int row, column;
    while (schedule.take(row, column)) {
#pragma unroll 1
        for (int slab = 0; slab < slabs; ++slab) {
            ptx::mbarrier_wait(ring.empty(ring.slot), ring.phase ^ 1);
            load_slab(ring, a, b, row, column, slab, schedule.rank);
            ring.advance();
        }
    }
}

// A warpgroup's tile of C in registers: kMTiles x (64 x kBlockN).
template <class T>
struct Sums {
    using Instruction = ptx::Wgmma<typename T::Operand, T::kBlockN, T::kNMajor>;
    float of[T::kMTiles][T::kBlockN / 2];

    // Starts the multiplications of one stage; `fresh`: the sums begin with it.
    void multiply(unsigned a, unsigned b, bool fresh) {
        constexpr int kStepA = 32, kStepB = T::kNMajor ? T::kSlab / T::kSteps * T::kRowBytes : 32;
        const auto of_a = ptx::matrix_descriptor(a, 16, 8 * T::kRowBytes);
        const auto of_b = ptx::matrix_descriptor(b, T::kNMajor ? T::kBBoxBytes : 16, 8 * T::kRowBytes);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
            for (int i = 0; i < T::kMTiles; ++i) {
                Instruction::multiply(of[i], of_a + (i * 64 * T::kRowBytes + step * kStepA) / 16,
                                      of_b + step * kStepB / 16, step > 0 || !fresh);
            }
        }
        ptx::wgmma_commit();
    }

    void pin() {
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i) ptx::pin(of[i]);
    }
};

// Multiplies all slabs of a tile. One stage's multiplications are in flight while the next one's are started.
template <class T>
void consume(Ring<T>& ring, Sums<T>& sums, int group, unsigned lane, int slabs) {
    const unsigned rows = group * T::kGroupM * T::kRowBytes;
    unsigned before = 0;
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab) {
        ptx::mbarrier_wait(ring.full(ring.slot), ring.phase);
        sums.multiply(ring.a() + rows, ring.b(), slab == 0);
        if (slab > 0) {
            ptx::wgmma_wait<1>();
            ring.release(before, lane);
        }
        before = ring.slot;
        ring.advance();
    }
    ptx::wgmma_wait<0>();
    sums.pin();
    ring.release(before, lane);
}
