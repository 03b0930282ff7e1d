// Rows that are read once and gone over several times.
//
// A row belongs to kGroup threads of a block (of a cluster's blocks, where there is one); a block
// of kGroup * kRows threads takes kRows rows. Thread t of a row's team takes packs t, t + team, ...
// The first kRegs of them stay in its registers, the next kShared in its own places of shared
// memory (no other thread touches them: no barrier), and what is left is read again, last in
// and first out, so that it is found in L2.
//
// A Source says what a pack is: load() brings it, hold() makes what is kept of it, values() gives
// the numbers.
#pragma once

#include "common/pack.cuh"
#include "common/reduce.cuh"

// Where a thread stands.
template <int kGroup, int kRows>
struct Place {
    static_assert(kGroup <= 32 || kRows == 1, "rows of whole blocks: a block each");
    static_assert(kCluster == 1 || kRows == 1, "rows of clusters: a cluster each");

    size_t row;
    bool inside;      // the row exists
    unsigned member;  // this thread's number in the row's team
    static constexpr unsigned kTeam = kGroup * kCluster;

    explicit Place(int rows) {
        const unsigned rank = kCluster > 1 ? ptx::cluster_rank() : 0;
        row = size_t(blockIdx.x / kCluster) * kRows + threadIdx.x / kGroup;
        inside = row < size_t(rows);
        member = rank * kGroup + threadIdx.x % kGroup;
    }
};

// A row of one array.
template <typename T, int kVec>
struct Plain {
    static constexpr int kValues = kVec;
    using Raw = Pack<T, kVec>;
    using Held = Raw;
    const T* row;

    Raw load(unsigned index, bool once) const { return load_pack<T, kVec>(row, index, once); }
    Held hold(const Raw& raw) const { return raw; }
    void values(const Held& held, float (&value)[kVec]) const { widen(held, value); }
    static void forget(Held& held) { forget_values(held); }
};

template <typename Source, int kThreads, unsigned kTeam, int kRegs, int kShared>
struct Row {
    static constexpr int kVec = Source::kValues;
    static constexpr int kBatch = 4;  // loads in flight where packs do not stay in registers
    static_assert(kShared % kBatch == 0, "whole batches");
    using Raw = typename Source::Raw;
    using Held = typename Source::Held;

    Source source;
    unsigned member, packs;
    Held kept[kRegs > 0 ? kRegs : 1];

    // packs is 0 for a row that does not exist.
    Row(const Source& from, unsigned first, unsigned count)
        : source(from), member(first), packs(count) {}

    // This thread's place i in shared memory; neighbours lie side by side.
    static Held* place(int i) {
        extern __shared__ uint4 row_places[];
        return reinterpret_cast<Held*>(row_places) + i * kThreads + threadIdx.x;
    }

    unsigned index(unsigned i) const { return member + i * kTeam; }

    template <typename F>
    void use(const Held& held, unsigned at, F& f) const {
        float value[kVec];
        source.values(held, value);
        f(value, at);
    }

    // Reads the row: f(values, pack number) for each of this thread's packs.
    template <typename F>
    void first(F f) {
        Raw raw[kRegs > 0 ? kRegs : 1];
#pragma unroll
        for (int i = 0; i < kRegs; ++i) {
            if (index(i) < packs) raw[i] = source.load(index(i), true);
        }
#pragma unroll
        for (int i = 0; i < kRegs; ++i) {
            if (index(i) < packs) {
                kept[i] = source.hold(raw[i]);
                use(kept[i], index(i), f);
            }
        }
#pragma unroll 1
        for (int i = 0; i < kShared; i += kBatch) {
            batch<true>(index(kRegs + i), [&](const Held& held, int j, unsigned at) {
                *place(i + j) = held;
                use(held, at, f);
            });
        }
        for (unsigned at = index(kRegs + kShared); at < packs; at += kBatch * kTeam) {
            batch<false>(at, [&](const Held& held, int, unsigned v) { use(held, v, f); });
        }
    }

    // Goes over it again.
    template <typename F>
    void again(F f) {
        for (unsigned at = index(kRegs + kShared); at < packs; at += kBatch * kTeam) {
            batch<true>(at, [&](const Held& held, int, unsigned v) { use(held, v, f); });
        }
#pragma unroll 1
        for (int i = 0; i < kShared; i += kBatch) {
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const unsigned at = index(kRegs + i + j);
                if (at < packs) use(*place(i + j), at, f);
            }
        }
#pragma unroll
        for (int i = 0; i < kRegs; ++i) {
            Source::forget(kept[i]);
            if (index(i) < packs) use(kept[i], index(i), f);
        }
    }

  private:
    template <bool kOnce, typename G>
    void batch(unsigned at, G g) const {
        Raw raw[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            const unsigned v = at + j * kTeam;
            if (v < packs) raw[j] = source.load(v, kOnce);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            const unsigned v = at + j * kTeam;
            if (v < packs) g(source.hold(raw[j]), j, v);
        }
    }
};
