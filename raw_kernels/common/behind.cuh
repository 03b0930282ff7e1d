// Rows that pass through shared memory one behind the other: while row q is written, rows q + 1 and q + 2 are
// summed, and row q + 3 is being loaded.
//
// A row belongs to kGroup threads of each block of a cluster. Every thread has places of its own for its packs
// of three rows (no other thread touches them: no barrier). A warp writes its part of row q, asks for row q + 3
// in the places that are free now, sums row q + 2, which has come meanwhile, and leaves what it found to one
// more warp of the block. That one merges what the warps found, hands it to all blocks of the cluster, merges
// what the blocks found, and tells the warps: by mbarriers, so that no barrier of the block or of the cluster
// is passed in the loop over rows. It has the time in which a row is written and one is summed.
//
// A thread that asks for more than can be on its way is held up until it may go on: the first row would be summed
// when all three have come. So it alone is asked for at first, and the third when it has been summed.
//
// No deadlock. A warp waits for the result of row q when it has left its part of q and of q + 1; leaving a part
// waits for nothing but the warp's own copies, and the merging warp takes meeting after meeting in that order: by
// induction every one completes. Whether a row is gone over again, with a meeting more (together), is decided by
// the result of a meeting, which has the same bits in all threads of the cluster.
//
// Nothing is overwritten that is still read. Meetings of rows use four places in turns: a warp leaves its part of
// q + 4 when it knows the result of q + 2, so every block's merging warp has sent its part of that, and is done
// with q and q + 1. Those of together() use two others: who leaves its part of one knows the result of the one
// before, for which every warp left its part when it knew that of the one before that. For the same reasons no
// barrier is two phases ahead of a warp that waits, and none gets bytes of a phase while the one before it is
// open. A block that ends has had all its meetings, and nothing is sent to it after that.
#pragma once

#include "common/row.cuh"
#include "ptx/mbarrier.cuh"

// kPacks: of a thread, of the longest row. Packs have 16 bytes.
template <int kGroup, int kPacks, int kBlocksAnSm, Fit kFit>
struct Behind {
    static constexpr int kThreads = kGroup + 32, kBlocks = kBlocksAnSm;
    static constexpr bool kEven = kFit == kWhole;  // all threads have as many packs of a row
    static_assert(kCluster > 1 && kGroup % 32 == 0 && kFit != kBeyond, "whole warps of several blocks");

    // Part: what threads find in a row: 4, 8 or 16 bytes. Op merges them, lanes<kLanes>(parts); makes an
    // Op::Result of all of a row, finish(part, whether of a row that was gone over again); and says whether with
    // this result a row is to be gone over again, again(result).
    template <class Source, class Part, class Op>
    struct Rows {
        static constexpr int kVec = Source::kValues, kArrays = Source::kArrays;
        static constexpr int kMost = kPacks, kOfColumns = kPacks;  // packs of each parameter in registers: all
        static constexpr int kRing = 3, kTurns = 4, kAll = kTurns + 2;  // rows; places of rows' meetings, of all
        static constexpr int kWarps = kGroup / 32, kTeam = kGroup * kCluster;
        static constexpr unsigned kRow = kPacks * kArrays * kGroup * 16;  // bytes
        static_assert(sizeof(typename Source::Part) == 16, "packs of 16 bytes");
        static_assert((kWarps & (kWarps - 1)) == 0 && (kCluster & (kCluster - 1)) == 0, "powers of two");
        using Raw = typename Source::Raw;
        using Result = typename Op::Result;

        const Source source;
        unsigned row;       // that is written
        unsigned turn = 0;  // rows before it
        const unsigned rows;
        const int packs, member;

        // Barriers are made, and used once ready() has been called; the first row is asked for.
        Rows(const Source& from, int count, int cols)
            : source(from),
              row(blockIdx.x / kCluster),
              rows(count),
              packs(cols / kVec),
              member(ptx::cluster_rank() * kGroup + threadIdx.x) {
            if (threadIdx.x == kGroup) {
#pragma unroll
                for (int place = 0; place < kAll; ++place) {
                    ptx::mbarrier_init(barrier(kFound, place), kWarps);
                    ptx::mbarrier_init(barrier(kHanded, place), 1);
                    ptx::mbarrier_init(barrier(kMerged, place), 1);
                }
                ptx::mbarrier_init_fence();
            }
            if (threadIdx.x % 32 == 0) meetings().extra[threadIdx.x / 32] = 0;
            __syncwarp();
            ptx::cluster_arrive();  // before anything is asked for: it waits for what is on its way
            if (!merges()) ask(0, 0);
        }
        void ready() const { ptx::cluster_wait(); }

        // Rows from one of a cluster to its next. (Computed anew each time: there is no register for it.)
        static unsigned step() {
            unsigned blocks;
            asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
            return blocks / kCluster;
        }
        bool more() const { return row < rows; }
        void next() {
            row += step();
            ++turn;
        }

        // This thread's i-th pack of a row.
        int index(int i) const { return member + i * kTeam; }
        bool has(int i) const { return kFit == kWhole || index(i) < packs; }

        // A row in shared memory. first() and again(): f(raw, its number among this thread's).
        struct InPlaces {
            static constexpr int kVec = Rows::kVec, kPacks = Rows::kMost;
            const Rows& of;
            unsigned at;      // its packs, in the ring
            unsigned number;  // of the row

            template <typename F>
            void first(F f) const {
#pragma unroll
                for (int i = 0; i < kPacks; ++i) {
                    if (of.has(i)) f(of.pack(at, i), i);
                }
            }
            // (Read again: there are no registers for all values.)
            template <typename F>
            void again(F f) const {
#pragma unroll
                for (int i = 0; i < kPacks; ++i) {
                    if (of.has(i)) f(of.template pack<true>(at, i), i);
                }
            }
            // By kCount packs: f(those, number of the first), which are gone over as often as wanted.
            template <int kCount, typename F>
            void by_several(F f) const {
#pragma unroll
                for (int start = 0; start < kPacks; start += kCount) {
                    Raw raw[kCount];
#pragma unroll
                    for (int i = 0; i < kCount; ++i) {
                        if (start + i < kPacks && of.has(start + i)) raw[i] = of.pack(at, start + i);
                    }
                    f([&](auto&& g) {
#pragma unroll
                        for (int i = 0; i < kCount; ++i) {
                            if (start + i < kPacks && of.has(start + i)) g(raw[i], start + i);
                        }
                    }, start);
                }
            }
            // With few registers: for what is seldom needed.
            template <typename F>
            void seldom(F f) const {
#pragma unroll 1
                for (int i = 0; i < kPacks; ++i) {
                    if (of.has(i)) f(of.pack(at, i), i);
                }
            }
        };
        // The row that is written.
        InPlaces current() const { return {*this, ring, row}; }

        // The first two rows, as they come: sum(row in shared memory) gives what this thread found. kAlone: no
        // row is asked for before the one in front of it has been summed.
        template <bool kAlone = false, typename Sum>
        void start(Sum sum) {
#pragma unroll 1
            for (unsigned ahead = 0; ahead < 2; ++ahead) {
                if (!kAlone) ask(ahead + 1, (ahead + 1) * kRow);
                sum_row<kAlone ? 0 : 1>(ahead, ahead * kRow, sum);
                if (kAlone) ask(ahead + 1, (ahead + 1) * kRow);
            }
        }
        static bool again(const Result& of_row) { return Op::again(of_row); }
        // The result of the row that is written; the same bits in all threads.
        Result receive() const { return result(turn % kTurns, turn / kTurns % 2); }
        // What is the same in all threads, so that the compiler knows it too: it would else keep, in
        // registers, what a warp needs that comes back in parts.
        static bool by_all(bool mine) { return __any_sync(0xffffffffu, mine); }
        // Of what every thread has found now; all threads of the cluster come here.
        Result together(const Part& mine) {
            const unsigned number = another(), place = kTurns + number % 2;
            leave(place, mine);
            return result(place, number / 2 % 2);
        }

        // When the row has been written: sums the one two behind it, which lies before it in the ring.
        template <typename Sum>
        void sum_next(Sum sum) {
            ask(kRing, ring);
            sum_row<1>(2, ring == 0 ? 2 * kRow : ring - kRow, sum);
            ring = ring == 2 * kRow ? 0 : ring + kRow;
        }

        // The threads of the last warp merge, and do nothing else.
        bool merges() const { return threadIdx.x >= kGroup; }
        void merge(const Op& op) {
#pragma unroll
            for (int place = 0; place < kAll; ++place) expect(place);
            for (; more(); next()) {
                if (by_all(Op::again(merge_at(turn % kTurns, turn / kTurns % 2, op, false)))) {
                    const unsigned number = another();
                    merge_at(kTurns + number % 2, number / 2 % 2, op, true);
                }
            }
        }

      private:
        enum Stage { kFound, kHanded, kMerged };
        // What the warps of the block found, what the blocks handed each other, and what came of it.
        struct Meetings {
            alignas(16) Part found[kAll][kWarps];
            alignas(16) Part handed[kAll][kCluster];
            alignas(16) Result results[kAll];
            unsigned long long barriers[3][kAll];
            unsigned extra[kWarps + 1];  // meetings beside the rows', that each warp has had
        };
        unsigned ring = 0;   // where the row that is written lies

        // Functions, not members: addresses that are constants need no registers.
        static Meetings& meetings() {
            alignas(16) __shared__ Meetings here;
            return here;
        }
        static unsigned barrier(Stage stage, unsigned place) {
            return ptx::shared_address(&meetings().barriers[stage][place]);
        }
        // This thread's place number i of an array, in the row that lies at `at`.
        static const uint4* place(unsigned at, int i, int array) {
            extern __shared__ __align__(128) uint4 row_places[];  // see row.cuh
            return reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(row_places) + at) + threadIdx.x +
                   (i * kArrays + array) * kGroup;
        }

        // The row so many behind, to a place in the ring; an empty group where there is none: they are counted.
        void ask(unsigned behind, unsigned to) const {
            const unsigned number = row + behind * step();
            if (number < rows) {
                const unsigned here = ptx::shared_address(place(to, 0, 0));
#pragma unroll
                for (int a = 0; a < kArrays; ++a) {
                    const auto* const from =
                        reinterpret_cast<const uint4*>(source.array(a)) + (size_t(number) * packs + member);
#pragma unroll
                    for (int i = 0; i < kPacks; ++i) {
                        if (has(i)) {
                            ptx::cp_async_16(here + (i * kArrays + a) * kGroup * 16, from + i * kTeam, 16);
                        }
                    }
                }
            }
            ptx::cp_async_commit();
        }
        // The row so many behind, when all have come but the newest kNewer.
        template <int kNewer, typename Sum>
        void sum_row(unsigned behind, unsigned at, Sum sum) const {
            const unsigned number = row + behind * step();
            ptx::cp_async_wait<kNewer>();
            if (number < rows) leave((turn + behind) % kTurns, sum(InPlaces{*this, at, number}));
        }
        template <bool kAgain = false>
        static Raw pack(unsigned at, int i) {
            Raw raw;
#pragma unroll
            for (int a = 0; a < kArrays; ++a) {
                const uint4* const here = place(at, i, a);
                const uint4 words = kAgain ? ptx::load_shared_again_16(ptx::shared_address(here)) : *here;
                Source::part(raw, a) = reinterpret_cast<const typename Source::Part&>(words);
            }
            return raw;
        }

        // The number of a meeting beside the rows'.
        static unsigned another() {
            unsigned* const count = &meetings().extra[threadIdx.x / 32];
            const unsigned number = *count;
            __syncwarp();
            if (threadIdx.x % 32 == 0) *count = number + 1;
            __syncwarp();
            return number;
        }
        void leave(unsigned place, const Part& mine) const {
            const Part of_warp = Op::template lanes<32>(mine);
            if (threadIdx.x % 32 == 0) {
                meetings().found[place][threadIdx.x / 32] = of_warp;
                ptx::mbarrier_arrive(barrier(kFound, place));
            }
            __syncwarp();
        }
        static Result result(unsigned place, unsigned parity) {
            ptx::mbarrier_wait(barrier(kMerged, place), parity);
            return meetings().results[place];
        }

        void expect(unsigned place) const {
            if (threadIdx.x == kGroup) ptx::mbarrier_expect(barrier(kHanded, place), sizeof(Part) * kCluster);
        }
        Result merge_at(unsigned place, unsigned parity, const Op& op, bool again) const {
            const unsigned lane = threadIdx.x % 32;
            ptx::mbarrier_wait(barrier(kFound, place), parity);
            hand(place, Op::template lanes<kWarps>(meetings().found[place][lane % kWarps]));
            ptx::mbarrier_wait(barrier(kHanded, place), parity);
            const Part all = Op::template lanes<kCluster>(meetings().handed[place][lane % kCluster]);
            const Result of_row = op.finish(all, again);
            expect(place);
            if (lane == 0) {
                meetings().results[place] = of_row;
                ptx::mbarrier_arrive(barrier(kMerged, place));
            }
            __syncwarp();
            return of_row;
        }
        // The block's part, to that place of every block.
        void hand(unsigned place, const Part& part) const {
            const unsigned lane = threadIdx.x % 32;
            if (lane < kCluster) {
                const unsigned here = ptx::shared_address(&meetings().handed[place][ptx::cluster_rank()]);
                const unsigned counter = barrier(kHanded, place);
                if constexpr (sizeof(Part) == 4) {
                    ptx::send_cluster_4(here, lane, counter, reinterpret_cast<const unsigned&>(part));
                } else if constexpr (sizeof(Part) == 8) {
                    ptx::send_cluster_8(here, lane, counter, reinterpret_cast<const uint2&>(part));
                } else {
                    ptx::send_cluster_16(here, lane, counter, reinterpret_cast<const uint4&>(part));
                }
            }
            __syncwarp();
        }
    };
};
