// One warp's share of attention/mma.cu: scores, probabilities and output of 16 or 32 queries, all in registers.
#pragma once

#include "attention/mma_copy.cuh"
#include "attention/shape.cuh"
#include "ptx/mma.cuh"

// How P is rounded to an operand type. kSlack: how far, in powers of two, the maximum may outgrow the base;
// kLift: P is multiplied by 2^kLift.
template <class Operand>
struct Powers {
    static constexpr float kSlack = 8.0f, kLift = 0.0f;
};

// kRowTiles * 16 queries of one warp. With lane = 4 g + t a lane holds, of each 16-row tile, rows g and g + 8.
// kHeadDim counts 16-bit elements: a row of fp8 has twice as many columns.
template <class Atom, class T, int kHeadDim>
struct Warp {
    using Layout = Rows<kHeadDim>;
    using Operand = typename Atom::Operand;
    using P = Powers<Operand>;
    static constexpr int kR = T::kRowTiles, kKeyTiles = T::kKeys / 8, kSteps = Layout::kSteps;
    static constexpr int kOutTiles = 2 * kSteps * (2 / sizeof(typename Operand::Storage));

    float out[kR][kOutTiles][4];   // unnormalised, relative to 2^base
    float s[kR][kKeyTiles][4];     // scores, then probabilities
    float base[kR][2], sum[kR][2]; // sum: this lane's share
    unsigned q_lane, k_lane, v_lane;
    int block_query;

    static int lane() { return unknown(threadIdx.x) % 32; }
    static int first_row() { return unknown(threadIdx.x) / 32 * T::kWarpRows; }

    Warp(int block_query_, unsigned q_tile) : block_query(block_query_) {
        const int r = lane() % 8, matrix = lane() / 8, row = first_row();
        // Matrices of A: rows 0-7, rows 8-15, then the same in the next chunk; of K: a chunk and the next, then the
        // next 8 keys; of V (transposed): keys 0-7, 8-15, then the same in the next chunk.
        q_lane = q_tile + (row + r + matrix % 2 * 8) * Layout::kPitch + matrix / 2 * 16;
        k_lane = (r + matrix / 2 * 8) * Layout::kPitch + matrix % 2 * 16;
        v_lane = (r + matrix % 2 * 8) * Layout::kPitch + matrix / 2 * 16;
    }

    // Whether any key of the tile that begins with `key` is seen by a row of the warp, and whether all are by all.
    void look(const Shape& shape, int key, bool& any, bool& all) const {
        const int first = block_query + first_row(), last = min(first + T::kWarpRows, shape.seq_q) - 1;
        const Keys low = seen_by(shape, first), high = seen_by(shape, last);
        any = key < high.last && key + T::kKeys > low.first;
        all = key >= high.first && key + T::kKeys <= low.last;
    }

    void clear() {
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int j = 0; j < kOutTiles; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) out[i][j][e] = 0.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h) base[i][h] = minus_infinity(), sum[i][h] = 0.0f;
        }
    }

    // s = Q K^T for the tile of keys in shared memory at k_tile.
    void scores(unsigned k_tile) {
#pragma unroll
        for (int i = 0; i < kR; ++i)
#pragma unroll
            for (int j = 0; j < kKeyTiles; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[i][j][e] = 0.0f;
        // Fragments are read ahead of their use: those of Q by one step, those of K by two products.
        constexpr int kPairs = kKeyTiles / 2, kUnits = kSteps * kPairs, kAhead = 2;
        unsigned a[2][kR][4], b[kAhead + 1][4];
        read_query(a[0], 0);
#pragma unroll
        for (int u = 0; u < kAhead; ++u) read_keys(b[u], k_tile, u / kPairs, u % kPairs);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            const int step = u / kPairs, j = u % kPairs * 2, ahead = u + kAhead;
            if (j == 0 && step + 1 < kSteps) read_query(a[(step + 1) % 2], step + 1);
            if (ahead < kUnits) read_keys(b[ahead % (kAhead + 1)], k_tile, ahead / kPairs, ahead % kPairs);
            multiply(s, j, a[step % 2], b[u % (kAhead + 1)]);
        }
    }

    void read_query(unsigned (&a)[kR][4], int step) const {
#pragma unroll
        for (int i = 0; i < kR; ++i) ptx::ldmatrix_x4(a[i], q_lane + i * 16 * Layout::kPitch + step * 32);
    }

    void read_keys(unsigned (&b)[4], unsigned k_tile, int step, int pair) const {
        ptx::ldmatrix_x4(b, k_tile + k_lane + pair * 16 * Layout::kPitch + step * 32);
    }

    void read_values(unsigned (&b)[4], unsigned v_tile, int x, int pair) const {
        ptx::ldmatrix_x4_trans(b, v_tile + v_lane + x * 16 * Layout::kPitch + pair * 32);
    }

    // Tiles j and j + 1 of d += a b.
    template <int kTiles>
    static void multiply(float (&d)[kR][kTiles][4], int j, const unsigned (&a)[kR][4], const unsigned (&b)[4]) {
        const unsigned b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < kR; ++i) Atom::multiply(d[i][j], a[i], b0);
#pragma unroll
        for (int i = kR - 1; i >= 0; --i) Atom::multiply(d[i][j + 1], a[i], b1);
    }

    // Scores to powers of two with the bias added; masked ones become -inf.
    void add_bias(const Shape& shape, const float* bias, const unsigned char* mask, int head, int key, float exponent) {
        const int t = lane() % 4, entry = head / shape.heads;
        const int b = shape.bias_planes > 1 ? head % shape.heads : 0, m = shape.mask_planes > 1 ? entry : 0;
#pragma unroll 1
        for (int row = 0; row < 2 * kR; ++row) {
            const int query = min(block_query + first_row() + row * 8 + lane() / 4, shape.seq_q - 1);
            const float* const bias_row = bias + (static_cast<long long>(b) * shape.seq_q + query) * shape.seq_k;
            const unsigned char* const mask_row =
                mask + (static_cast<long long>(m) * shape.seq_q + query) * shape.seq_k;
#pragma unroll
            for (int i = 0; i < kR; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (row != 2 * i + h) continue;
#pragma unroll
                    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            float& x = s[i][j][2 * h + e];
                            const int at = key + 8 * j + 2 * t + e;
                            x *= exponent;
                            if (at >= shape.seq_k) continue;
                            if (shape.bias_planes > 0) x = biased(x, bias_row[at]);
                            if (shape.mask_planes > 0 && mask_row[at] == 0) x = minus_infinity();
                        }
                    }
                }
            }
        }
    }

    // A finite bias leaves a finite score, also where its multiple is none: a row of such scores is no empty row.
    static float biased(float x, float bias) {
        const float sum = fmaf(bias, kLog2eF, x);
        return sum < -kLargest && bias >= -kLargest ? -kLargest : sum;
    }

    // Scores of keys that a row does not see become -inf.
    void hide(const Shape& shape, int key) {
        const int t = lane() % 4, query = block_query + first_row() + lane() / 4;
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const Keys seen = seen_by(shape, query + 16 * i + 8 * h);
                const int from = seen.first - key - 2 * t, to = seen.last - key - 2 * t;
#pragma unroll
                for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        if (8 * j + e < from || 8 * j + e >= to) s[i][j][2 * h + e] = minus_infinity();
                    }
                }
            }
        }
    }

    // s becomes 2^(s * exponent - base); base, sum and out follow the maximum.
    void probabilities(float exponent) {
        float factor[kR][2];
        bool grown = false;
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float top = s[i][0][2 * h];
#pragma unroll
                for (int j = 0; j < kKeyTiles; ++j) top = fmaxf(top, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * exponent;
                const bool grows = top > base[i][h] + P::kSlack;  // from -inf: any finite maximum
                factor[i][h] = grows ? ptx::exp2_approx(base[i][h] - top) : 1.0f;
                if (grows) base[i][h] = top;
                grown |= grows;
            }
        }
        if (__any_sync(0xffffffffu, grown)) {
#pragma unroll
            for (int i = 0; i < kR; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) sum[i][h] *= factor[i][h];
#pragma unroll
                for (int j = 0; j < kOutTiles; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) out[i][j][e] *= factor[i][e / 2];
            }
        }
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float b = base[i][h] == minus_infinity() ? 0.0f : base[i][h] - P::kLift;
#pragma unroll
                for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const float p = ptx::exp2_approx(fmaf(s[i][j][2 * h + e], exponent, -b));
                        s[i][j][2 * h + e] = p;
                        sum[i][h] += p;
                    }
                }
            }
        }
    }

    // out += P V for the tile of values in shared memory at v_tile.
    void accumulate(unsigned v_tile) {
        constexpr int kPairs = kSteps, kUnits = T::kKeys / 16 * kPairs, kAhead = 2;
        unsigned p[kR][4], b[kAhead + 1][4];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) read_values(b[u], v_tile, u / kPairs, u % kPairs);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            const int x = u / kPairs, j = u % kPairs * 2, ahead = u + kAhead;
            if (j == 0) pack(p, x);
            if (ahead < kUnits) read_values(b[ahead % (kAhead + 1)], v_tile, ahead / kPairs, ahead % kPairs);
            multiply(out, j, p, b[u % (kAhead + 1)]);
        }
    }

    // Probabilities of keys 16 x to 16 x + 15 as a left operand.
    void pack(unsigned (&p)[kR][4], int x) const {
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const float(&pair)[4] = s[i][2 * x + w / 2];
                p[i][w] = Half<Operand>::pack(pair[w % 2 * 2], pair[w % 2 * 2 + 1]);
            }
        }
    }

    // 1 over the sum of a row, and its log-sum-exp; the whole warp calls it.
    float finish_row(int i, int h, float* lse, bool inside) const {
        float total = sum[i][h];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (inside && lane() % 4 == 0) *lse = fmaf(base[i][h] - P::kLift, kLn2, logf(total));
        return total == 0.0f ? 0.0f : 1.0f / total;
    }

    // Rows at or behind `rows`, counted from the block's first, do not exist.
    template <class Store>
    void store(unsigned short* to, float* lse, int rows) {
        const int t = lane() % 4, first = first_row() + lane() / 4;
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = first + 16 * i + 8 * h;
                const float share = finish_row(i, h, lse + row, row < rows);
                if (row >= rows) continue;
#pragma unroll
                for (int j = 0; j < 2 * kSteps; ++j) {
                    const unsigned word =
                        Half<Store>::pack(out[i][j][2 * h] * share, out[i][j][2 * h + 1] * share);
                    unsigned short* const at = to + static_cast<long long>(row) * kHeadDim + 8 * j + 2 * t;
                    if constexpr (kHeadDim % 2 == 0) {
                        if (kHeadDim % 16 == 0 || 8 * j + 2 * t < kHeadDim) *reinterpret_cast<unsigned*>(at) = word;
                    } else {
                        if (8 * j + 2 * t < kHeadDim) at[0] = static_cast<unsigned short>(word);
                        if (8 * j + 2 * t + 1 < kHeadDim) at[1] = static_cast<unsigned short>(word >> 16);
                    }
                }
            }
        }
    }
};
