// Attention on e4m3 Q, K and V with scales, on the tensor cores by mma.sync; out in 16 bits; layouts and
// masks in attention/shape.cuh.
//
// q_scale (batch, heads, seq_q), k_scale and v_scale (batch, kv_heads, seq_k): a row's values are its codes
// times its scale. The scales of K and V are read once for each tile of keys, which lies in one block of 64: keys
// 64 i .. 64 i + 63 share a scale (block-scaled), or all keys of a head do (tensor-scaled: read once).
//
// The idea is that of attention/mma.cu. What differs: scores are multiplied by the scales of their query and
// their tile; P in [0, 1] is multiplied by 2^8 before it is rounded to e4m3, so that fewer of them are subnormal;
// and the product with V of one tile starts from zero and is added to the float32 output with the tile's scale.
// This promotion also keeps long sums out of tensor cores whose fp8 accumulator holds 13 fraction bits.
//
// An fp8 operand has four keys in a word. Scores leave the accumulator two keys at a time, so the k index of the
// second product is mapped to keys in that order, and V's words, which ldmatrix transposes in pairs of columns,
// are put together from the same keys: even columns in one product, odd columns in the next.
//
// Source: Shah et al., "FlashAttention-3" (arXiv 2407.08608); DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv
// 2412.19437), 3.3.2 (promotion); PTX ISA, "mma", "ldmatrix", "prmt".
#include "attention/fp8_warp.cuh"
#include "attention/mma_walk.cuh"

// kPerTensor: one scale for all keys of a head. kExtra: there is a bias or a mask. Grid: one block a tile of
// queries and head; block: T::kThreads.
template <class Store, class T, int kHeadDim, bool kPerTensor, bool kExtra>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    attention_fp8(const unsigned char* q, const unsigned char* k, const unsigned char* v, const float* q_scale,
                  const float* k_scale, const float* v_scale, const float* bias, const unsigned char* mask,
                  unsigned short* out, float* lse, int batch, int heads, int kv_heads, int seq_q, int seq_k,
                  int causal, int window, int bias_planes, int mask_planes) {
    static_assert(kHeadDim % 16 == 0, "rows are copied in chunks of 16 bytes");
    static_assert(64 % T::kKeys == 0, "a tile of keys lies in one block of scales");
    extern __shared__ __align__(128) unsigned char tiles[];
    const unsigned shared = ptx::shared_address(tiles);
    const Shape s{batch, heads, kv_heads, seq_q, seq_k, causal, window, bias_planes, mask_planes};
    const Place at = locate<T>(s);
    const long long first_row = static_cast<long long>(at.head) * seq_q + at.query;
    const long long first_key = static_cast<long long>(kv_head(s, at.head)) * seq_k;
    float of_keys = k_scale[first_key], of_values = v_scale[first_key];

    Fp8Warp<T, kHeadDim> warp(at.query, shared);
    warp.clear();
    float of_rows[T::kRowTiles][2];
    warp.read_scales(of_rows, q_scale + first_row, seq_q - at.query, Scale<kHeadDim>::kWhole * kLog2eF);
    walk<T, kHeadDim / 2>(s, at, q, k, v, shared, [] {}, [&](int key, unsigned k_tile, unsigned v_tile) {
        bool any, all;
        warp.look(s, key, any, all);
        if (!any) return;
        if constexpr (!kPerTensor) {
            of_keys = k_scale[first_key + key];
            of_values = v_scale[first_key + key];
        }
        warp.scores(k_tile);
        warp.scale_scores(of_rows, of_keys);
        if constexpr (kExtra) warp.add_bias(s, bias, mask, at.head, key, 1.0f);
        if (!all) warp.hide(s, key);
        warp.probabilities(1.0f);
        warp.accumulate_scaled(v_tile, of_values);
    });
    warp.template store_rows<Store>(out + first_row * kHeadDim, lse + first_row, seq_q - at.query);
}
