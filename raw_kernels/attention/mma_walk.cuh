// How a block of the tensor-core kernels walks over its keys: where it works, and the ring of stages in shared
// memory through which tiles of keys and values stream.
#pragma once

#include "attention/mma_copy.cuh"
#include "attention/shape.cuh"

// Where a block works: its head (of batch * heads) and its first query.
struct Place {
    int head, query;
};

// Heads are taken in groups whose keys stay in L2; inside a group the last queries, which under causality have
// the most keys, come first.
template <class T>
Place locate(const Shape& s) {
    const int heads = s.batch * s.heads, blocks = (s.seq_q - 1) / T::kRows + 1;
    const int group = blockIdx.x / (T::kGroup * blocks), inside = blockIdx.x - group * T::kGroup * blocks;
    const int width = min(T::kGroup, heads - group * T::kGroup);
    const int row = inside / width;
    return {group * T::kGroup + inside - row * width, (blocks - 1 - row) * T::kRows};
}

// Keys and values of the head of keys that a head of queries reads, as head of batch * kv_heads.
inline int kv_head(const Shape& s, int head) {
    return head / s.heads * s.kv_heads + head % s.heads / (s.heads / s.kv_heads);
}

// Copies the block's queries to `shared`, lets `prepare` change what each thread copied itself, then calls
// each(first key, tile of keys, tile of values) for every tile of keys that the block sees. kWords: 16-bit elements
// of a row.
template <class T, int kWords, class Prepare, class Each>
void walk(const Shape& s, const Place& at, const void* q, const void* k, const void* v, unsigned shared,
          Prepare prepare, Each each) {
    using Layout = Rows<kWords>;
    using Copies = Copier<T, kWords>;
    // The block's tiles of keys: [begin, end).
    const Keys low = seen_by(s, at.query), high = seen_by(s, min(at.query + T::kRows, s.seq_q) - 1);
    const int begin = low.first / T::kKeys, end = (high.last + T::kKeys - 1) / T::kKeys;

    const unsigned ring = shared + T::kRows * Layout::kPitch;
    constexpr unsigned kStage = 2 * T::kKeys * Layout::kPitch;
    const long long first_row = static_cast<long long>(at.head) * s.seq_q + at.query;
    long long next = (static_cast<long long>(kv_head(s, at.head)) * s.seq_k + begin * T::kKeys) * Layout::kBytes;
    int left = s.seq_k - begin * T::kKeys;  // keys from there on
    auto fetch = [&](unsigned stage, bool wanted) {
        if (wanted) {
            Copies::template copy<T::kKeys>(stage, static_cast<const char*>(k) + next, left);
            Copies::template copy<T::kKeys>(stage + kStage / 2, static_cast<const char*>(v) + next, left);
        }
        next += T::kKeys * Layout::kBytes;
        left -= T::kKeys;
        if constexpr (T::kAsync) ptx::cp_async_commit();
    };

    Copies::template copy<T::kRows>(shared, static_cast<const char*>(q) + first_row * Layout::kBytes,
                                    s.seq_q - at.query);
    if constexpr (T::kAsync) ptx::cp_async_commit();
#pragma unroll
    for (int i = 0; i < T::kStages - 1; ++i) fetch(ring + i * kStage, begin + i < end);
    Copies::clear_padding(shared, T::kRows + 2 * T::kStages * T::kKeys);
    if constexpr (T::kAsync) ptx::cp_async_wait<T::kStages - 1>();
    prepare();

    unsigned read = ring, write = ring + (T::kStages - 1) * kStage;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
        if constexpr (T::kAsync) ptx::cp_async_wait<T::kStages - 2>();
        __syncthreads();
        fetch(write, tile + T::kStages - 1 < end);
        write = write + kStage == ring + T::kStages * kStage ? ring : write + kStage;
        each(tile * T::kKeys, read, read + kStage / 2);
        read = read + kStage == ring + T::kStages * kStage ? ring : read + kStage;
    }
    if constexpr (T::kAsync) ptx::cp_async_wait<0>();
}
