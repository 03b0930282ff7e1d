// Rows that pass through shared memory one behind the other: while row q is written, row q + 1 has been
// summed and its partial results are on their way, and row q + 2 is being loaded.
//
// Every thread has a ring of kRing batches of places of its own (no other thread touches them: no
// barrier), room for two rows and for what is coming. A warp sums row q + 1, sends what it found to
// every block of the cluster, and only then waits for what all warps found in row q, which was sent a
// whole row ago: an mbarrier counts it. No barrier of the block or of the cluster is passed in the loop
// over rows.
//
// A thread that asks for more than can be on its way is held up until it may go on. So the first row alone
// is asked for at first, and a batch of what follows with each that is summed, until the ring is full: the
// first row would else be summed when the whole ring has come.
//
// No deadlock. A warp waits for a meeting only when it has sent its part of it and of all before it (and
// of row q + 1's, where there is such a row, before it waits for row q's), and sending waits for nothing
// but the warp's own copies: by induction over the meetings every one completes. Whether a row is gone
// over again, with a meeting more (together), is decided by the result of a meeting, which has the same
// bits in all threads of the cluster: so all of them have the same meetings in the same order.
//
// No part is overwritten that is still read. Meetings of rows use four places in turns: who sends its
// part of q + 4 has passed meeting q + 2, to which every warp sent after it had read meeting q. Those of
// together() use two others: who sends its part of one has passed the one before, to which every warp sent
// after it had read the one before that. For the same reasons no barrier is two phases ahead of a warp
// that waits, and none gets bytes of a phase while the one before it is open. A block that ends has passed
// its last meeting, and nothing is sent to it after that.
#pragma once

#include "common/row.cuh"
#include "ptx/mbarrier.cuh"

// kPacks: of a thread, of the longest row. Packs have 16 bytes.
template <int kGroup, int kPacks, int kRing, int kBlocksAnSm, Fit kFit>
struct Behind {
    static constexpr int kThreads = kGroup, kBlocks = kBlocksAnSm;
    static constexpr bool kEven = kFit == kWhole;  // all threads have as many packs of a row
    static_assert(kCluster > 1 && kGroup % 32 == 0 && kFit != kBeyond, "whole warps of several blocks");

    // Part: what a warp finds in a row: 4, 8 or 16 bytes.
    template <typename T, class Part>
    struct Rows {
        static constexpr int kVec = 16 / sizeof(T);
        static constexpr int kOfColumns = kPacks;  // packs of each parameter that stay in registers
        static constexpr int kBatch = kPacks % 4 == 0 ? 4 : kPacks % 2 == 0 ? 2 : 1;
        static constexpr int kBatches = kPacks / kBatch;
        static constexpr int kWarps = kGroup / 32, kParts = kWarps * kCluster;
        static constexpr int kTurns = 4, kAll = kTurns + 2;  // places of rows' meetings, of all
        static constexpr int kTeam = kGroup * kCluster;
        static constexpr unsigned kApart = kGroup * 16, kStep = kBatch * kApart, kPlaces = kRing * kStep;
        static_assert(kRing == 3 * kBatches, "three rows");
        static_assert((kParts & (kParts - 1)) == 0, "a power of two");
        using Raw = Pack<T, kVec>;

        unsigned row;       // that is written
        unsigned turn = 0;  // rows before it
        const unsigned step, rows;
        const int packs, member;

        // Barriers are made, and used once ready() has been called; loads are asked for.
        Rows(const T* x, int count, int cols)
            : row(blockIdx.x / kCluster),
              step(gridDim.x / kCluster),
              rows(count),
              packs(cols / kVec),
              member(ptx::cluster_rank() * kGroup + threadIdx.x),
              source(x) {
            extern __shared__ __align__(128) uint4 row_places[];  // see row.cuh
            alignas(16) __shared__ Part all[kAll][kParts];
            __shared__ unsigned long long counters[kAll];
            places = reinterpret_cast<const char*>(row_places + threadIdx.x);
            base = ptx::shared_address(places);
            parts = &all[0][0];
            barriers = ptx::shared_address(counters);
            if (threadIdx.x == 0) {
#pragma unroll
                for (int i = 0; i < kAll; ++i) ptx::mbarrier_init(barriers + ptx::kBarrierBytes * i, 1);
                ptx::mbarrier_init_fence();
            }
            __syncwarp();
            ptx::cluster_arrive();  // before anything is asked for: it waits for what is on its way
            begin(row);
#pragma unroll
            for (int n = 0; n < kBatches; ++n) ask(n);
        }
        void ready() const { ptx::cluster_wait(); }

        bool more() const { return row < rows; }
        bool another() const { return rows - row > step; }
        void next() {
            row += step;
            ++turn;
        }

        // This thread's i-th pack of a row.
        int index(int i) const { return member + i * kTeam; }
        bool has(int i) const { return kFit == kWhole || index(i) < packs; }
        // How many packs this thread has.
        int mine() const {
            return kFit == kWhole ? kPacks : member < packs ? (packs - member - 1) / kTeam + 1 : 0;
        }

        // The row behind the one that is written, as it comes and then again. kStart: the first of all.
        template <bool kStart>
        struct Coming {
            Rows& of;
            // f(pack, its number among this thread's).
            template <typename F>
            void first(F f) {
                first_batches([&](const Raw(&raw)[kBatch], int number) { of.each(raw, number, f); });
            }
            template <typename F>
            void again(F f) {
                again_batches([&](const Raw(&raw)[kBatch], int number) { of.each(raw, number, f); });
            }
            // f(batch, its number): each() has those of its packs that there are.
            template <typename F>
            void first_batches(F f) {
                of.template arrived<kStart, 0>(of.front, f);
            }
            template <typename F>
            void again_batches(F f) {
                unsigned at = of.front;
#pragma unroll
                for (int n = 0; n < kBatches; ++n, at = after(at)) of.batch(at, n, f);
            }
        };

        // The row that is written: gone over for once in a while, with few registers.
        struct Current {
            Rows& of;
            template <typename F>
            void first(F f) {
                unsigned at = of.back;
#pragma unroll 1
                for (int i = 0; i < kPacks; ++i) {
                    if (of.has(i)) f(of.pack(at), i);
                    at = at + kApart == kPlaces ? 0 : at + kApart;
                }
            }
            template <typename F>
            void again(F f) {
                first(f);
            }
        };

        template <typename F>
        void each(const Raw (&raw)[kBatch], int number, F&& f) const {
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (has(number * kBatch + j)) f(raw[j], number * kBatch + j);
            }
        }

        // The row behind has been gone over, and this is what the warp found in it.
        template <bool kStart>
        void send(const Part& mine) {
#pragma unroll
            for (int n = 0; n < kBatches; ++n) front = after(front);
            tell((kStart ? 0 : turn + 1) % kTurns, mine);
        }
        // What all warps found in the row that is written; the same bits in all threads.
        template <class Op>
        Part receive(Op op) const {
            return heard(turn % kTurns, turn / kTurns % 2, op);
        }
        // What is the same in all threads, so that the compiler knows it too: it would else keep, in
        // registers, what a warp needs that comes back in parts.
        static bool by_all(bool mine) { return __any_sync(0xffffffffu, mine); }

        // Of what every thread has found now; all threads of the cluster come here.
        template <class Op>
        Part together(const Part& mine, Op op) {
            const unsigned place = kTurns + meetings % 2, parity = meetings / 2 % 2;
            ++meetings;
            tell(place, Op::template lanes<32>(mine));
            return heard(place, parity, op);
        }

        // The row that is written, for the last time: f(pack, its number among this thread's).
        template <typename F>
        void last(F f) {
            begin(row + 3 * step);
#pragma unroll
            for (int n = 0; n < kBatches; ++n, back = after(back)) {
                batch(back, n, [&](const Raw(&raw)[kBatch], int number) { each(raw, number, f); });
                ask(n);
            }
        }

      private:
        const T* const source;
        const char* from;                // this thread's packs of the row that is asked for
        bool asks;                       // there is such a row
        int missing = kRing - kBatches;  // batches that the ring is short of
        unsigned base, to = 0, front = 0, back = 0;  // offsets of batches in the ring
        const char* places;
        const Part* parts;
        unsigned barriers, meetings = 0;

        // A warp's part: to that place of every block.
        void tell(unsigned place, const Part& mine) const {
            const unsigned lane = threadIdx.x % 32, warp = ptx::cluster_rank() * kWarps + threadIdx.x / 32;
            const unsigned barrier = barriers + ptx::kBarrierBytes * place;
            if (threadIdx.x == 0) ptx::mbarrier_expect(barrier, sizeof(Part) * kParts);
            if (lane < kCluster) {
                const unsigned here = ptx::shared_address(parts + place * kParts + warp);
                if constexpr (sizeof(Part) == 4) {
                    ptx::send_cluster_4(here, lane, barrier, reinterpret_cast<const unsigned&>(mine));
                } else if constexpr (sizeof(Part) == 8) {
                    ptx::send_cluster_8(here, lane, barrier, reinterpret_cast<const uint2&>(mine));
                } else {
                    ptx::send_cluster_16(here, lane, barrier, reinterpret_cast<const uint4&>(mine));
                }
            }
            __syncwarp();
        }

        // Of all warps' parts, when they are there.
        template <class Op>
        Part heard(unsigned place, unsigned parity, Op) const {
            ptx::mbarrier_wait(barriers + ptx::kBarrierBytes * place, parity);
            constexpr int kOfLane = kParts < 32 ? 1 : kParts / 32;
            const Part* const part = parts + place * kParts + threadIdx.x % 32 % kParts;
            Part mine[kOfLane];
#pragma unroll
            for (int i = 0; i < kOfLane; ++i) mine[i] = part[32 * i];
            return Op::template lanes<kParts / kOfLane>(mine);
        }

        static unsigned after(unsigned at) { return at + kStep == kPlaces ? 0 : at + kStep; }

        void begin(unsigned number) {
            asks = number < rows;
            from = reinterpret_cast<const char*>(source) + (size_t(number) * packs + member) * 16;
        }
        // One more batch of the row; an empty group where there is none, so that groups can be counted.
        void ask(int number) {
            if (asks) {
#pragma unroll
                for (int j = number * kBatch; j < (number + 1) * kBatch; ++j) {
                    if (has(j)) ptx::cp_async_16(base + to + j % kBatch * kApart, from + j * (kTeam * 16), 16);
                }
            }
            ptx::cp_async_commit();
            to = after(to);
        }

        // Groups that were asked for after batch kNumber of the row: while the ring is filled, as many as at
        // first; then those that fill it, less what is not asked for again before the row before is written.
        template <bool kStart, int kNumber, typename F>
        void arrived(unsigned at, F& f) {
            if constexpr (kNumber < kBatches) {
                const bool fills = kStart || missing > 0;
                if (fills) {
                    ptx::cp_async_wait<kBatches - 1>();
                } else {
                    ptx::cp_async_wait<kRing - kBatches - 1 - kNumber>();
                }
                batch(at, kNumber, f);
                if (fills) {
                    if (kNumber == 0) begin(row + (kStart ? 1 : 2) * step);
                    ask(kNumber);
                    --missing;
                }
                arrived<kStart, kNumber + 1>(after(at), f);
            }
        }

        template <typename F>
        void batch(unsigned at, int number, F&& f) const {
            Raw raw[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (has(number * kBatch + j)) raw[j] = pack(at + j * kApart);
            }
            f(raw, number);
        }
        Raw pack(unsigned at) const {
            return packed<T, kVec>(*reinterpret_cast<const uint4*>(places + at));
        }
    };
};
