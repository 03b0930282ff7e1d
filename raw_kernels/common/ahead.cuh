// Rows that are gone over once: while some packs are taken, the next ones are on their way to registers,
// those of the next row too, so that the memory never waits for a computation.
#pragma once

#include "common/row.cuh"

// kPacks: on their way at once. kWhole rows have two such lots for each thread, or a multiple.
template <int kGroup, int kRows, int kPacks, int kBlocksAnSm, Fit kFit>
struct Ahead {
    static constexpr int kThreads = kGroup * kRows, kBlocks = kBlocksAnSm;

    template <class Source>
    struct Rows : Team<Source, kGroup, kRows, kFit> {
        using Base = Team<Source, kGroup, kRows, kFit>;
        using Raw = typename Base::Raw;
        using Base::has, Base::index, Base::packs, Base::row, Base::rows, Base::use;

        Raw coming[kPacks];

        Rows(const Source& from, int count, int cols) : Base(from, count, cols) { fetch(row, 0); }

        // f(values, pack number, how many of this thread's came before).
        template <typename F>
        void once(F f) {
#pragma unroll 1
            for (int i = 0; i * Base::kTeam < packs; i += 2 * kPacks) {
                some(i, f);
                some(i + kPacks, f);
            }
        }

      private:
        // This thread's packs i, i + 1, ...; those after them are asked for.
        template <typename F>
        void some(int i, F& f) {
            Raw now[kPacks];
#pragma unroll
            for (int j = 0; j < kPacks; ++j) now[j] = coming[j];
            const bool more = (i + kPacks) * Base::kTeam < packs;
            if (more) {
                fetch(row, i + kPacks);
            } else if (i * Base::kTeam < packs) {
                fetch(row + Base::step, 0);
            }
#pragma unroll
            for (int j = 0; j < kPacks; ++j) {
                if (has(i + j)) use(now[j], i + j, f);
            }
        }

        void fetch(unsigned from, int i) {
            if (from >= rows) return;
            const int first = index(i);
            const size_t start = size_t(from) * packs + first;
#pragma unroll
            for (int j = 0; j < kPacks; ++j) {
                if (kFit == kWhole || first + j * Base::kTeam < packs) {
                    coming[j] = Base::source.load(start + j * Base::kTeam, true);
                }
            }
        }
    };
};
