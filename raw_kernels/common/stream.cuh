// Rows that stream through shared memory: while one is summed and written, the next ones are on their
// way, so that the memory does not wait for a reduction.
//
// Every thread has a ring of kRing batches of places of its own (no other thread touches them: no
// barrier). It asks for its packs in the order in which it will want them, row after row, and for
// one more batch whenever it has used one for the last time. A row too long for that has its last
// kRegs packs a thread in registers. kHolds: so do the columns' parameters, and then pack numbers of
// the last pass are constants. kPollsForBlocks: how the blocks of a cluster meet (common/reduce.cuh).
#pragma once

#include "common/row.cuh"

template <int kGroup, int kRows, int kPacks, int kRing, int kRegs, int kBlocksAnSm, Fit kFit,
          bool kHolds = false, bool kPollsForBlocks = false>
struct Streamed {
    static constexpr int kThreads = kGroup * kRows, kBlocks = kBlocksAnSm;

    // kPacks: of a thread, of the longest row, in shared memory.
    template <class Source>
    struct Rows : Team<Source, kGroup, kRows, kFit> {
        using Base = Team<Source, kGroup, kRows, kFit>;
        using Raw = typename Base::Raw;
        using Base::has, Base::index, Base::load, Base::packs, Base::places, Base::use;
        static constexpr int kVec = Base::kVec, kArrays = Base::kArrays;
        static constexpr int kBatch = kPacks % 4 == 0 ? 4 : kPacks % 2 == 0 ? 2 : 1;
        static constexpr int kBatches = kPacks / kBatch;
        static constexpr bool kPolls = kPollsForBlocks;
        static constexpr int kOfColumns = kHolds ? kPacks + kRegs : 0;
        static constexpr int kAtOnce = kHolds ? kBatches : 1;  // of the last pass
        static_assert(kFit != kBeyond && kRing >= kBatches, "the ring holds a row");

        unsigned meetings = 0;                  // of its blocks, where they poll
        int slot = 0;                           // where the first batch of the row lies
        unsigned coming;                        // the row that is asked for
        int coming_batch = 0, coming_slot = 0;  // its next batch, and where that will lie
        Raw kept[kRegs > 0 ? kRegs : 1];

        Rows(const Source& from, int count, int cols) : Base(from, count, cols), coming(Base::row) {
#pragma unroll 1
            for (int i = 0; i < kRing; ++i) ask();
        }

        // Waits for the row: f(values, pack number, how many of this thread's came before).
        template <typename F>
        void first(F f) {
#pragma unroll
            for (int i = 0; i < kRegs; ++i) {
                if (has(kPacks + i)) kept[i] = load(kPacks + i, true);
            }
            arrived<0>(slot, f);
            in_registers(f);
        }

        // The same: it has been asked for.
        void begin() const {}
        template <typename F>
        void begun(F f) {
            first(f);
        }

        // Goes over it again.
        template <typename F>
        void again(F f) {
            int at = slot;
#pragma unroll 1
            for (int i = 0; i < kBatches; ++i, at = after(at)) batch(at, i, f);
            in_registers(f);
        }

        template <typename F>
        void anew(F f) {
            again(f);
        }

        // For the last time.
        template <typename F>
        void last(F f) {
#pragma unroll kAtOnce
            for (int i = 0; i < kBatches; ++i, slot = after(slot)) {
                batch(slot, i, f);
                ask();
            }
            in_registers(f);
        }

      private:
        static int after(int place) { return place + 1 == kRing ? 0 : place + 1; }

        // One more batch; an empty group where there is none, so that groups can be counted.
        void ask() {
            if (coming < Base::rows) {
                const int first = index(coming_batch * kBatch);
                const size_t start = (size_t(coming) * packs + first) * kVec;
                auto* const to = places + coming_slot * (kBatch * kArrays * kThreads);
#pragma unroll
                for (int a = 0; a < kArrays; ++a) {
                    const auto* const from = Base::source.array(a) + start;
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        if (kFit == kWhole || first + j * Base::kTeam < packs) {
                            copy_pack(to + (j * kArrays + a) * kThreads,
                                      from + j * (Base::kTeam * kVec));
                        }
                    }
                }
            }
            ptx::cp_async_commit();
            coming_slot = after(coming_slot);
            if (++coming_batch == kBatches) {
                coming_batch = 0;
                coming += Base::step;
            }
        }

        // Of the kRing batches that were asked for, those after number kNumber of the row may be missing.
        template <int kNumber, typename F>
        void arrived(int at, F& f) {
            if constexpr (kNumber < kBatches) {
                ptx::cp_async_wait<kRing - 1 - kNumber>();
                batch(at, kNumber, f);
                arrived<kNumber + 1>(after(at), f);
            }
        }

        template <typename F>
        void batch(int at, int number, F& f) {
            Raw raw[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (has(number * kBatch + j)) raw[j] = Base::from_place(at * kBatch + j);
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (has(number * kBatch + j)) use(raw[j], number * kBatch + j, f);
            }
        }

        template <typename F>
        void in_registers(F& f) {
#pragma unroll
            for (int i = 0; i < kRegs; ++i) {
                Source::forget(kept[i]);
                if (has(kPacks + i)) use(kept[i], kPacks + i, f);
            }
        }
    };
};
