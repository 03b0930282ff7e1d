// Rows that pass through shared memory one behind the other: while row q is written, row q + 1 has been
// summed and its partial results are on their way, and row q + 2 is being loaded.
//
// Every thread has a ring of kRing batches of places of its own (no other thread touches them: no
// barrier), room for two rows and for what is coming. A warp sums row q + 1, sends what it found to
// every block of the cluster, and only then waits for what all warps found in row q, which was sent a
// whole row ago: an mbarrier counts it. No barrier of the block or of the cluster is passed in the loop
// over rows.
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
        static_assert(kRing >= 2 * kBatches, "two rows");
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
              from(reinterpret_cast<const char*>(x + size_t(row) * cols) + member * 16),
              jump((long long)step * cols * int(sizeof(T)) - (long long)kPacks * kTeam * 16) {
            extern __shared__ __align__(128) uint4 row_places[];  // see row.cuh
            alignas(16) __shared__ Part all[kAll][kParts];
            __shared__ unsigned long long counters[kAll];
            left = row < rows ? ((rows - row - 1) / step + 1) * kBatches : 0;
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
#pragma unroll
            for (int n = 0; n < kRing; ++n) ask(n);
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
#pragma unroll
            for (int n = 0; n < kBatches; ++n, back = after(back)) {
                batch(back, n, [&](const Raw(&raw)[kBatch], int number) { each(raw, number, f); });
                ask(kRing + n);
            }
        }

      private:
        const char* from;      // the next batch that is asked for
        const long long jump;  // bytes from behind a row's last batch to the next row
        unsigned left;         // batches that are to be asked for
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
        Part heard(unsigned place, unsigned parity, Op op) const {
            ptx::mbarrier_wait(barriers + ptx::kBarrierBytes * place, parity);
            const Part* const part = parts + place * kParts;
            const unsigned lane = threadIdx.x % 32;
            Part value = part[lane % kParts];
#pragma unroll
            for (int i = 32; i < kParts; i += 32) value = op(value, part[lane + i]);
            return Op::template lanes<(kParts < 32 ? kParts : 32)>(value);
        }

        static unsigned after(unsigned at) { return at + kStep == kPlaces ? 0 : at + kStep; }

        // One more batch, number `number` of all modulo those of a row; an empty group where there is
        // none, so that groups can be counted.
        void ask(int number) {
            if (left > 0) {
                const int first = number % kBatches * kBatch;
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (has(first + j)) {
                        ptx::cp_async_16(base + to + j * kApart, from + j * (kTeam * 16), 16);
                    }
                }
                --left;
                from += kBatch * kTeam * 16;
                if (number % kBatches == kBatches - 1) from += jump;
            }
            ptx::cp_async_commit();
            to = after(to);
        }

        // Groups that were asked for after batch kNumber of the row: those that filled the ring, less what
        // was not asked for again because the row before has not been written.
        template <bool kStart, int kNumber, typename F>
        void arrived(unsigned at, F& f) {
            if constexpr (kNumber < kBatches) {
                ptx::cp_async_wait<(kStart ? kRing : kRing - kBatches) - 1 - kNumber>();
                batch(at, kNumber, f);
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
