// Rows that are read once and gone over several times, taken one after the other by teams of threads.
//
// A row belongs to kGroup threads of a block (of each block of a cluster, where there is one); a
// block of kGroup * kRows threads takes kRows rows at a time. Thread t of a row's team takes packs
// t, t + team, ... How they are kept until the last time is a type:
//   Kept      the first kRegs packs of a thread stay in its registers, the next kShared in its own
//             places of shared memory (no other thread touches them: no barrier), and what is left
//             is read again, last in and first out, so that it is found in L2.
//   Streamed  (common/stream.cuh) they wait in shared memory; the next rows are on their way.
//   Ahead     (common/ahead.cuh) they are not kept: a row is gone over once.
// Behind (common/behind.cuh) sums a row while the one before it is written; its rows are no Team.
// A Source says what a pack is: load() brings it, values() gives the numbers. What is brought is made of
// kArrays parts, packs of so many arrays.
#pragma once

#include "common/pack.cuh"
#include "common/reduce.cuh"

// A row of one array.
template <typename T, int kVec>
struct Plain {
    static constexpr int kValues = kVec, kArrays = 1;
    using Part = Pack<T, kVec>;
    using Raw = Part;
    const T* x;

    const T* array(int) const { return x; }
    static Part& part(Raw& raw, int) { return raw; }
    Raw load(size_t at, bool once) const { return load_pack<T, kVec>(x, at, once); }
    void values(const Raw& raw, float (&value)[kVec]) const { widen(raw, value); }
    static void forget(Raw& raw) { forget_values(raw); }
};

// A row has just the packs that are kept of one, so that none of them needs a branch; fewer; or more.
enum Fit { kWhole, kWithin, kBeyond };

// The rows of a team, and where a thread stands in it.
template <class Source_, int kGroup_, int kRows, Fit kFit>
struct Team {
    static_assert(kGroup_ <= 32 || kRows == 1, "rows of whole blocks: a block each");
    static_assert(kCluster == 1 || kRows == 1, "rows of clusters: a cluster each");
    using Source = Source_;
    using Raw = typename Source::Raw;
    using Part = typename Source::Part;
    static constexpr int kArrays = Source::kArrays;
    static constexpr int kVec = Source::kValues, kGroup = kGroup_, kThreads = kGroup_ * kRows;
    static constexpr int kTeam = kGroup_ * kCluster;
    static constexpr bool kEven = kFit == kWhole;  // each has as many packs of a row
    static constexpr int kOfColumns = 0;  // packs of each parameter that stay in registers
    static constexpr bool kPolls = false;  // how its blocks meet (common/reduce.cuh)

    const Source source;
    const unsigned rows, step;
    const int packs;   // of a row
    const int member;  // this thread's number in the team
    Part* const places;  // this thread's in shared memory; the threads' lie side by side
    unsigned row;
    unsigned turn = 0;  // rows before it
    int here;           // packs of this row: none if there is no such row

    Team(const Source& from, int count, int cols)
        : source(from),
          rows(count),
          step(gridDim.x / kCluster * kRows),
          packs(cols / kVec),
          member((kCluster > 1 ? ptx::cluster_rank() : 0) * kGroup_ + threadIdx.x % kGroup_),
          places(reinterpret_cast<Part*>(shared_places()) + threadIdx.x),
          row(blockIdx.x / kCluster * kRows + threadIdx.x / kGroup_) {
        here = inside() ? packs : 0;
    }

    // Aligned, so that copies write whole sectors of shared memory: halves take longer (docs/performance.md).
    static uint4* shared_places() {
        extern __shared__ __align__(128) uint4 row_places[];
        return row_places;
    }

    // Whether there is a row for any of the block's teams: they go on together.
    bool more() const { return row - threadIdx.x / kGroup < rows; }
    bool inside() const { return row < rows; }
    void next() {
        row += step;
        here = inside() ? packs : 0;
        ++turn;
    }

    // This thread's i-th pack of a row.
    int index(int i) const { return member + i * kTeam; }
    bool has(int i) const {
        if constexpr (kFit == kWhole) return kRows == 1 || inside();
        return exists(i);
    }
    bool exists(int i) const { return index(i) < here; }
    Raw load(int i, bool once) const { return source.load(size_t(row) * packs + index(i), once); }

    template <typename F>
    void use(const Raw& raw, int i, F& f) const {
        float value[kVec];
        source.values(raw, value);
        f(value, index(i), i);
    }

    Raw from_place(int i) const {
        Raw raw;
#pragma unroll
        for (int a = 0; a < kArrays; ++a) Source::part(raw, a) = places[(i * kArrays + a) * kThreads];
        return raw;
    }
    void to_place(int i, Raw raw) const {
#pragma unroll
        for (int a = 0; a < kArrays; ++a) places[(i * kArrays + a) * kThreads] = Source::part(raw, a);
    }
};

// A parameter of the columns. Where a row says so, its packs of this thread are read by bring(), before
// they are wanted, and stay in registers: a row's threads need not wait for them once they have met.
template <class Row, typename W>
struct OfColumns {
    static constexpr int kVec = Row::kVec, kKept = Row::kOfColumns;
    const W* const from;
    Pack<W, kVec> kept[kKept > 0 ? kKept : 1];

    explicit OfColumns(const W* parameter) : from(parameter) {}

    // With the first row. (Loads that other threads' stores cannot concern, __ldg's, the compiler may put off
    // until behind the barrier at which the row's threads meet.)
    void bring(const Row& row) {
        if (row.turn > 0) return;
        using Memory = typename Pack<W, kVec>::Memory;
#pragma unroll
        for (int i = 0; i < kKept; ++i) {
            if (row.has(i)) kept[i] = packed<W, kVec>(__ldca(reinterpret_cast<const Memory*>(from) + row.index(i)));
        }
    }

    // Those of pack `at` of a row, this thread's number `number`, which is a constant where they are kept.
    Pack<W, kVec> pack(int at, int number) {
        if constexpr (kKept > 0) {
            forget_values(kept[number]);
            return kept[number];
        } else {
            return load_pack<W, kVec>(from, at, false);
        }
    }
    void values(int at, int number, float (&value)[kVec]) { widen(pack(at, number), value); }
};

template <int kGroup, int kRows, int kRegs, int kShared, int kBlocksAnSm, Fit kFit>
struct Kept {
    static constexpr int kThreads = kGroup * kRows, kBlocks = kBlocksAnSm;

    template <class Source>
    struct Rows : Team<Source, kGroup, kRows, kFit> {
        using Base = Team<Source, kGroup, kRows, kFit>;
        using Raw = typename Base::Raw;
        using Base::Base, Base::has, Base::load, Base::use;
        static constexpr int kBatch = 4;  // loads in flight where packs do not stay in registers
        static constexpr bool kMeets = kGroup > 32;  // its warps, at a barrier
        static constexpr int kOfColumns =
            kMeets && kShared == 0 && kFit != kBeyond && kRegs <= kBatch ? kRegs : 0;
        static_assert(kShared % kBatch == 0, "whole batches");

        Raw kept[kRegs > 0 ? kRegs : 1];

        // There are blocks for all rows: no other one follows.
        bool more() const { return Base::turn == 0 && Base::more(); }

        // Reads the row: f(values, pack number, how many of this thread's came before).
        template <typename F>
        void first(F f) {
            begin();
            begun(f);
        }
        // The same in two parts: asks for what stays in registers; goes over the row.
        void begin() {
#pragma unroll
            for (int i = 0; i < kRegs; ++i) {
                if (has(i)) kept[i] = load(i, true);
            }
        }
        template <typename F>
        void begun(F f) {
#pragma unroll
            for (int i = 0; i < kRegs; ++i) {
                if (has(i)) use(kept[i], i, f);
            }
#pragma unroll 1
            for (int i = 0; i < kShared; i += kBatch) {
                batch<true>(kRegs + i, [&](const Raw& raw, int n) {
                    Base::to_place(n - kRegs, raw);
                    use(raw, n, f);
                });
            }
            if constexpr (kFit == kBeyond) {
                for (int i = kRegs + kShared; has(i); i += kBatch) {
                    batch<false>(i, [&](const Raw& raw, int n) { use(raw, n, f); });
                }
            }
        }

        // Goes over it again.
        template <typename F>
        void again(F f) {
            if constexpr (kFit == kBeyond) {
                for (int i = kRegs + kShared; has(i); i += kBatch) {
                    batch<true>(i, [&](const Raw& raw, int n) { use(raw, n, f); });
                }
            }
#pragma unroll 1
            for (int i = 0; i < kShared; i += kBatch) {
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (has(kRegs + i + j)) use(Base::from_place(i + j), kRegs + i + j, f);
                }
            }
#pragma unroll
            for (int i = 0; i < kRegs; ++i) {
                Source::forget(kept[i]);
                if (has(i)) use(kept[i], i, f);
            }
        }

        // As again(), but read anew, with few registers: for what is seldom needed.
        template <typename F>
        void anew(F f) const {
#pragma unroll 1
            for (int i = 0; Base::exists(i); ++i) use(load(i, false), i, f);
        }

        // For the last time.
        template <typename F>
        void last(F f) {
            again(f);
        }

      private:
        template <bool kOnce, typename G>
        void batch(int i, G g) const {
            Raw raw[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (has(i + j)) raw[j] = load(i + j, kOnce);
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (has(i + j)) g(raw[j], i + j);
            }
        }
    };
};
