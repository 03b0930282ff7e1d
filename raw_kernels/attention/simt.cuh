// out = softmax(scale Q K^T + bias, over the keys that mask, causality and window leave) V, and the
// log-sum-exp of every row, on CUDA cores; layouts and masks in attention/shape.cuh.
//
// The idea: a warp owns kQueries queries and walks over tiles of 32 keys, which its block brings to
// shared memory as float32. For scores a lane owns a key; the maximum and the sum of a tile are then
// reductions over the warp. For the output a lane owns columns. Sum and output are relative to the
// running maximum and are rescaled when it grows (the online softmax).
//
// Numbers: everything inside is float32. Q is multiplied by 1 / sqrt(head_dim) before the product;
// products are summed in ascending order of the column, outputs in ascending order of the key; P is
// not rounded; the result is divided by the sum and rounded once. Rows without a key are 0 with a
// log-sum-exp of -inf. A masked key has weight 0: its V must be finite.
//
// What a kernel of this family decides for itself is its Rules; the right ones are in simt.cu.
//
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867).
#pragma once

#include "attention/shape.cuh"
#include "common/formats.cuh"
#include "common/reduce.cuh"
#include "common/tile.cuh"

// Sizes of a block's work, known to the host.
struct SimtTile {
    static constexpr int kWarps = 4, kQueries = 4, kKeys = 32, kBlocks = 4;
    static constexpr int kRows = kWarps * kQueries, kThreads = 32 * kWarps;
};

// p[r] = Q K^T of the queries and the lane's key, products in ascending order of the column.
template <int kHeadDim>
void multiply_key(float (&p)[SimtTile::kQueries], const float* queries, const float* key) {
#pragma unroll
    for (int r = 0; r < SimtTile::kQueries; ++r) p[r] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < kHeadDim; ++d) {
        const float of_key = key[d];
#pragma unroll
        for (int r = 0; r < SimtTile::kQueries; ++r) {
            p[r] = fmaf(queries[r * kHeadDim + d], of_key, p[r]);
        }
    }
}

// What a warp found for a query: the lane's columns of its row of ``out``, and the log-sum-exp.
template <typename Out, int kHeadDim, int kColumns>
void write_query(Out* out, float* lse, const float (&total)[kColumns], float sum, float largest,
                 int lane) {
    if (lane == 0) *lse = largest + logf(sum);
    const float share = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
        const int d = lane + 32 * c;
        if (d < kHeadDim) out[d] = from_acc<Out>(total[c] * share);
    }
}

// Brings the tile that begins at ``key`` to shared memory, as float32; 0 behind the last key.
template <int kHeadDim, int kPitch, typename T>
void bring_tile(float* tile, const T* from, size_t keys_at, int key, int seq_k) {
    __syncthreads();
    for (int i = threadIdx.x; i < SimtTile::kKeys * kHeadDim; i += SimtTile::kThreads) {
        const int row = i / kHeadDim;
        const T code = load_or_zero(from, (keys_at + key) * kHeadDim + i, key + row < seq_k);
        tile[row * kPitch + i - row * kHeadDim] = to_float(code);
    }
    __syncthreads();
}

template <typename T, typename Out, int kHeadDim, typename Rules>
__global__ void __launch_bounds__(SimtTile::kThreads, SimtTile::kBlocks)
    attention_simt(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   const float* __restrict__ bias, const unsigned char* __restrict__ mask,
                   Out* __restrict__ out, float* __restrict__ lse, int batch, int heads,
                   int kv_heads, int seq_q, int seq_k, int causal, int window, int bias_planes,
                   int mask_planes) {
    using S = SimtTile;
    constexpr int kColumns = (kHeadDim + 31) / 32;  // of the output, a lane
    constexpr int kPitch = kHeadDim | 1;            // odd: 32 rows begin in 32 banks
    extern __shared__ __align__(16) float space[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* const queries = space + warp * S::kQueries * kHeadDim;
    float* const tile = space + S::kRows * kHeadDim;  // keys, then values

    const Shape shape{batch,  heads,  kv_heads,    seq_q,      seq_k,
                      causal, window, bias_planes, mask_planes};
    const int blocks = ceil_div(seq_q, S::kRows);
    const int head = blockIdx.x / blocks, block_first = (blockIdx.x - head * blocks) * S::kRows;
    const int entry = head / heads, head_of_entry = head - entry * heads;
    const int kv_head = entry * kv_heads + head_of_entry / (heads / kv_heads);
    const size_t keys_at = static_cast<size_t>(kv_head) * seq_k;
    const size_t rows_at = static_cast<size_t>(head) * seq_q;
    const int first = block_first + warp * S::kQueries;
    const int block_last = min(block_first + S::kRows, seq_q) - 1;
    const int begin = Rules::seen(shape, block_first).first / S::kKeys * S::kKeys;
    const int end = Rules::seen(shape, block_last).last;

    const float scale = Scale<kHeadDim>::kWhole;
    for (int i = lane; i < S::kQueries * kHeadDim; i += 32) {
        const int row = i / kHeadDim;
        const bool inside = first + row < seq_q;
        const T code = load_or_zero(q, (rows_at + first) * kHeadDim + i, inside);
        queries[i] = Rules::scale_query(to_float(code), scale);
    }

    float sums[S::kQueries], largest[S::kQueries], total[S::kQueries][kColumns], p[S::kQueries];
#pragma unroll
    for (int r = 0; r < S::kQueries; ++r) {
        sums[r] = 0.0f, largest[r] = minus_infinity();
#pragma unroll
        for (int c = 0; c < kColumns; ++c) total[r][c] = 0.0f;
    }

#pragma unroll 1
    for (int key = begin; key < end; key += S::kKeys) {
        bring_tile<kHeadDim, kPitch>(tile, k, keys_at, key, seq_k);
        multiply_key<kHeadDim>(p, queries, tile + lane * kPitch);
        const int mine = key + lane;
#pragma unroll
        for (int r = 0; r < S::kQueries; ++r) {
            const int query = min(first + r, seq_q - 1);
            float x = Rules::scale_score(p[r], scale);
            const Keys seen = Rules::seen(shape, query);
            bool hidden = mine < seen.first || mine >= seen.last;
            if (mine < seq_k && bias_planes > 0) {
                const size_t plane = bias_planes > 1 ? head_of_entry : 0;
                x += bias[(plane * seq_q + query) * seq_k + mine];
            }
            if (mine < seq_k && mask_planes > 0) {
                const size_t plane = mask_planes > 1 ? entry : 0;
                hidden = hidden || mask[(plane * seq_q + query) * seq_k + mine] == 0;
            }
            // A lane without a key has no score at all, whatever the rules say of hidden ones.
            x = mine >= Rules::keys(seq_k) ? minus_infinity() : hidden ? Rules::hide(x) : x;
            const float top = fmaxf(largest[r], warp_reduce<32>(x, Larger{}));
            const float base = Rules::base(top);
            const float factor = Rules::rescale(ptx::exp2_approx((largest[r] - base) * kLog2eF));
            p[r] = ptx::exp2_approx((x - base) * kLog2eF);
            sums[r] = fmaf(sums[r], factor, warp_reduce<32>(p[r], Add{}));
            largest[r] = top;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) total[r][c] *= factor;
        }
        bring_tile<kHeadDim, kPitch>(tile, v, keys_at, key, seq_k);
#pragma unroll 2
        for (int j = 0; j < S::kKeys; ++j) {
            float of_key[S::kQueries];
#pragma unroll
            for (int r = 0; r < S::kQueries; ++r) {
                of_key[r] = __shfl_sync(0xffffffffu, p[r], j);
            }
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                const int d = lane + 32 * c;
                const float value = d < kHeadDim ? tile[j * kPitch + d] : 0.0f;
#pragma unroll
                for (int r = 0; r < S::kQueries; ++r) {
                    total[r][c] = fmaf(of_key[r], value, total[r][c]);
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < S::kQueries; ++r) {
        if (first + r >= seq_q) continue;
        const size_t row = rows_at + first + r;
        write_query<Out, kHeadDim>(out + row * kHeadDim, lse + row, total[r], sums[r], largest[r],
                                   lane);
    }
}

// The rules of a right kernel.
struct RightRules {
    // 1 / sqrt(head_dim) belongs on Q, before the product.
    static float scale_query(float q, float scale) { return q * scale; }
    static float scale_score(float s, float scale) { return s; }
    // Which keys causality and window leave, and how many keys there are.
    static Keys seen(const Shape& shape, int query) { return seen_by(shape, query); }
    static int keys(int seq_k) { return seq_k; }
    // The score of a hidden key: e^-inf = 0.
    static float hide(float score) { return minus_infinity(); }
    // What exponentials are relative to; a row without a key so far has none.
    static float base(float largest) { return largest == minus_infinity() ? 0.0f : largest; }
    // e^(old maximum - new maximum), by which what was summed so far is multiplied.
    static float rescale(float factor) { return factor; }
};
