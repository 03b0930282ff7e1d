// One warp's share of attention/fp8.cu: what differs from attention/mma_warp.cuh for 8-bit operands.
#pragma once

#include "attention/mma_warp.cuh"

// P is at most 2^8 where the base is the maximum; e4m3 ends at 448.
template <>
struct Powers<ptx::e4m3> {
    static constexpr float kSlack = 0.0f, kLift = 8.0f;
};

// Four e4m3 codes, the first lowest.
inline unsigned pack_e4m3(float a, float b, float c, float d) {
    const unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const unsigned high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

template <class T, int kHeadDim>
struct Fp8Warp : Warp<ptx::Atom<ptx::e4m3, float, 32>, T, kHeadDim / 2> {
    using Base = Warp<ptx::Atom<ptx::e4m3, float, 32>, T, kHeadDim / 2>;
    using Base::Base;
    using Base::kR;
    static constexpr int kGroups = kHeadDim / 16;  // of 16 columns of V
    static constexpr int kDeep = T::kKeys / 32;    // products of 32 keys
    static_assert(T::kKeys % 32 == 0, "the product with V takes 32 keys at a time");

    // The scales of the lane's rows, times a factor.
    void read_scales(float (&scale)[kR][2], const float* from, int rows, float factor) const {
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = this->first_row() + this->lane() / 4 + 16 * i + 8 * h;
                scale[i][h] = from[min(row, rows - 1)] * factor;
            }
        }
    }

    // Scores to powers of two.
    void scale_scores(const float (&of_rows)[kR][2], float of_keys) {
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float factor = of_rows[i][h] * of_keys;
#pragma unroll
                for (int j = 0; j < Base::kKeyTiles; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) this->s[i][j][2 * h + e] *= factor;
                }
            }
        }
    }

    // out += scale * P V for the tile of values in shared memory at v_tile; of each 16 columns, tile 2 j of out
    // holds the even ones and tile 2 j + 1 the odd ones.
    void accumulate_scaled(unsigned v_tile, float scale) {
        unsigned p[kDeep][kR][4];
#pragma unroll
        for (int x = 0; x < kDeep; ++x) pack_keys(p[x], x);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            float part[kR][2][4] = {};
#pragma unroll
            for (int x = 0; x < kDeep; ++x) {
                unsigned w[4];
                ptx::ldmatrix_x4_trans(w, v_tile + value_lane() + x * 32 * Base::Layout::kPitch + group * 16);
                const unsigned even[2] = {ptx::permute_bytes<0x6420>(w[0], w[1]),
                                          ptx::permute_bytes<0x6420>(w[2], w[3])};
                const unsigned odd[2] = {ptx::permute_bytes<0x7531>(w[0], w[1]),
                                         ptx::permute_bytes<0x7531>(w[2], w[3])};
#pragma unroll
                for (int i = 0; i < kR; ++i) {
                    ptx::mma_m16n8k32_e4m3(part[i][0], p[x][i], even);
                    ptx::mma_m16n8k32_e4m3(part[i][1], p[x][i], odd);
                }
            }
#pragma unroll
            for (int i = 0; i < kR; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        float& sum = this->out[i][2 * group + j][e];
                        sum = fmaf(part[i][j][e], scale, sum);
                    }
        }
    }

    // Row of V that the lane addresses, of 32 keys.
    static unsigned value_lane() { return Base::lane() * Base::Layout::kPitch; }

    // Probabilities of keys 32 x to 32 x + 31: word t of the left operand holds keys 2 t and 2 t + 1 of one tile of
    // eight keys and of the next.
    void pack_keys(unsigned (&p)[kR][4], int x) const {
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const float(&one)[4] = this->s[i][4 * x + w / 2 * 2];
                const float(&next)[4] = this->s[i][4 * x + w / 2 * 2 + 1];
                const int h = w % 2 * 2;
                p[i][w] = pack_e4m3(one[h], one[h + 1], next[h], next[h + 1]);
            }
        }
    }

    // Rows at or behind `rows`, counted from the block's first, do not exist.
    template <class Store>
    void store_rows(unsigned short* to, float* lse, int rows) {
        const int t = this->lane() % 4, first = this->first_row() + this->lane() / 4;
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = first + 16 * i + 8 * h;
                const float share = this->finish_row(i, h, lse + row, row < rows);
                if (row >= rows) continue;
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    const float(&even)[4] = this->out[i][2 * group];
                    const float(&odd)[4] = this->out[i][2 * group + 1];
                    const uint2 words = {Half<Store>::pack(even[2 * h] * share, odd[2 * h] * share),
                                         Half<Store>::pack(even[2 * h + 1] * share, odd[2 * h + 1] * share)};
                    unsigned short* const at = to + static_cast<long long>(row) * kHeadDim + 16 * group + 4 * t;
                    *reinterpret_cast<uint2*>(at) = words;
                }
            }
        }
    }
};
