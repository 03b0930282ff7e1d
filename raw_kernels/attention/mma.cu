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
#include "attention/mma_walk.cuh"
#include "attention/mma_warp.cuh"

// kExtra: there is a bias or a mask. Grid: one block a tile of queries and head; block: T::kThreads.
template <class Operand, int kInstructionK, class T, int kHeadDim, bool kExtra>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    attention_mma(const unsigned short* q, const unsigned short* k, const unsigned short* v, const float* bias,
                  const unsigned char* mask, unsigned short* out, float* lse, int batch, int heads, int kv_heads,
                  int seq_q, int seq_k, int causal, int window, int bias_planes, int mask_planes) {
    using Atom = ptx::Atom<Operand, float, kInstructionK>;
    extern __shared__ __align__(128) unsigned char tiles[];
    const unsigned shared = ptx::shared_address(tiles);
    const Shape s{batch, heads, kv_heads, seq_q, seq_k, causal, window, bias_planes, mask_planes};
    const Place at = locate<T>(s);

    Warp<Atom, T, kHeadDim> warp(at.query, shared);
    warp.clear();
    auto scale = [&] { Copier<T, kHeadDim>::template scale<Operand, T::kRows>(shared, Scale<kHeadDim>::kQuery); };
    walk<T, kHeadDim>(s, at, q, k, v, shared, scale, [&](int key, unsigned k_tile, unsigned v_tile) {
        bool any, all;
        warp.look(s, key, any, all);
        if (!any) return;
        warp.scores(k_tile);
        float exponent = Scale<kHeadDim>::kExponent;
        if constexpr (kExtra) {
            warp.add_bias(s, bias, mask, at.head, key, exponent);
            exponent = 1.0f;
        }
        if (!all) warp.hide(s, key);
        warp.probabilities(exponent);
        warp.accumulate(v_tile);
    });
    const long long first_row = static_cast<long long>(at.head) * seq_q + at.query;
    warp.template store<Operand>(out + first_row * kHeadDim, lse + first_row, seq_q - at.query);
}
