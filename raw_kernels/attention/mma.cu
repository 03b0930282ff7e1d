// out = softmax(scale Q K^T + bias, over the keys that mask, causality and window leave) V, and the natural
// log-sum-exp of every row, on the tensor cores by mma.sync; layouts and masks in attention/shape.cuh.
//
// The idea: a warp owns 16 or 32 queries and keeps their unnormalised output in registers while tiles of keys
// and values stream through shared memory. A tile's scores are an mma accumulator; exponentiated and rounded to
// the operand type they are, register for register, the left operand of the product with V, so that neither
// scores nor probabilities are ever stored. A row's sum and output are kept relative to a base near its running
// maximum: where the maximum outgrows the base by more than 2^8, both are rescaled (the online softmax).
//
// Numbers: Q is scaled by a power of two before the product (Scale); scores, maximum, sum and output are float32;
// P is rounded to the operand type after the exponential, its sum is taken before; the result is divided by the
// sum in float32 and rounded once. Rows without a key are 0 with a log-sum-exp of -inf. A masked key has weight
// 0: its V must be finite.
//
// Shared rows are padded to an odd number of 16-byte chunks, so that eight successive rows lie in different
// banks whatever the head dim. Keys beyond seq_k are zeros and masked.
//
// Source: Dao, "FlashAttention-2" (arXiv 2307.08691); Milakov and Gimelshein, "Online normalizer calculation
// for softmax" (arXiv 1805.02867); PTX ISA, "mma", "ldmatrix", "cp.async".
#include "attention/mma_warp.cuh"

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

// kExtra: there is a bias or a mask. Grid: one block a tile of queries and head; block: T::kThreads.
template <class Operand, int kInstructionK, class T, int kHeadDim, bool kExtra>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    attention_mma(const unsigned short* q, const unsigned short* k, const unsigned short* v, const float* bias,
                  const unsigned char* mask, unsigned short* out, float* lse, int batch, int heads, int kv_heads,
                  int seq_q, int seq_k, int causal, int window, int bias_planes, int mask_planes) {
    using Atom = ptx::Atom<Operand, float, kInstructionK>;
    using Layout = Rows<kHeadDim>;
    using W = Warp<Atom, T, kHeadDim>;
    extern __shared__ __align__(128) unsigned char tiles[];
    const unsigned shared = ptx::shared_address(tiles);
    const Shape s{batch, heads, kv_heads, seq_q, seq_k, causal, window, bias_planes, mask_planes};
    const Place at = locate<T>(s);
    const int kv_head = at.head / heads * kv_heads + at.head % heads / (heads / kv_heads);

    // The block's tiles of keys: [begin, end).
    const Keys low = seen_by(s, at.query), high = seen_by(s, min(at.query + T::kRows, seq_q) - 1);
    const int begin = low.first / T::kKeys, end = (high.last + T::kKeys - 1) / T::kKeys;

    using Copies = Copier<T, kHeadDim>;
    const unsigned q_tile = shared, ring = shared + T::kRows * Layout::kPitch;
    constexpr unsigned kStage = 2 * T::kKeys * Layout::kPitch;
    const long long first_row = static_cast<long long>(at.head) * seq_q + at.query;
    long long next = (static_cast<long long>(kv_head) * seq_k + begin * T::kKeys) * Layout::kBytes;
    int left = seq_k - begin * T::kKeys;  // keys from there on
    auto fetch = [&](unsigned stage, bool wanted) {
        if (wanted) {
            Copies::template copy<T::kKeys>(stage, reinterpret_cast<const char*>(k) + next, left);
            Copies::template copy<T::kKeys>(stage + kStage / 2, reinterpret_cast<const char*>(v) + next, left);
        }
        next += T::kKeys * Layout::kBytes;
        left -= T::kKeys;
        if constexpr (T::kAsync) ptx::cp_async_commit();
    };

    Copies::template copy<T::kRows>(q_tile, reinterpret_cast<const char*>(q + first_row * kHeadDim), seq_q - at.query);
    if constexpr (T::kAsync) ptx::cp_async_commit();
#pragma unroll
    for (int i = 0; i < T::kStages - 1; ++i) fetch(ring + i * kStage, begin + i < end);
    Copies::clear_padding(shared, T::kRows + 2 * T::kStages * T::kKeys);
    if constexpr (T::kAsync) ptx::cp_async_wait<T::kStages - 1>();
    Copies::template scale<Operand, T::kRows>(q_tile, Scale<kHeadDim>::kQuery);

    W warp(at.query, q_tile);
    warp.clear();
    unsigned read = ring, write = ring + (T::kStages - 1) * kStage;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
        if constexpr (T::kAsync) ptx::cp_async_wait<T::kStages - 2>();
        __syncthreads();
        fetch(write, tile + T::kStages - 1 < end);
        write = write + kStage == ring + T::kStages * kStage ? ring : write + kStage;
        const int key = tile * T::kKeys;
        bool any, all;
        warp.look(s, key, any, all);
        if (any) {
            warp.scores(read);
            float exponent = Scale<kHeadDim>::kExponent;
            if constexpr (kExtra) {
                warp.add_bias(s, bias, mask, at.head, key, exponent);
                exponent = 1.0f;
            }
            if (!all) warp.hide(s, key);
            warp.probabilities(exponent);
            warp.accumulate(read + kStage / 2);
        }
        read = read + kStage == ring + T::kStages * kStage ? ring : read + kStage;
    }
    if constexpr (T::kAsync) ptx::cp_async_wait<0>();
    warp.template store<Operand>(out + first_row * kHeadDim, lse + first_row, seq_q - at.query);
}
