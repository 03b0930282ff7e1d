// gpulab: exercise=attention
// gpulab: block=32 grid=ceil(seq_q/16),heads,batch shared=0
//
// A warp owns 16 queries; both products are mma.sync with a float accumulator, 16 keys at a time.
// The scores leave the first product in the layout in which the second takes its weights.
#include <cuda_fp16.h>

#define MOST 128

// Two neighbours of a row of a (rows, columns) matrix as one register, zeros outside.
__device__ unsigned pair(const __half* from, int row, int column, int rows, int columns) {
    __half low = __float2half(0.0f), high = low;
    if (row < rows && column < columns) low = from[(size_t)row * columns + column];
    if (row < rows && column + 1 < columns) high = from[(size_t)row * columns + column + 1];
    return (unsigned)__half_as_ushort(high) << 16 | __half_as_ushort(low);
}

__device__ unsigned pack(float low, float high) {
    return (unsigned)__half_as_ushort(__float2half(high)) << 16 |
           __half_as_ushort(__float2half(low));
}

__device__ void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4, first = blockIdx.x * 16;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
    q += head * seq_q * head_dim;
    k += head * seq_k * head_dim;
    v += head * seq_k * head_dim;
    float scale = 1.0f / sqrtf((float)head_dim), o[MOST / 8][4];
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    for (int c = 0; c < MOST / 8; ++c) o[c][0] = o[c][1] = o[c][2] = o[c][3] = 0.0f;

    for (int key = 0; key < seq_k; key += 16) {
        float s[2][4] = {};
        for (int d = 0; d < head_dim; d += 16) {
            unsigned a[4];
            for (int i = 0; i < 4; ++i) {
                a[i] = pair(q, first + g + i % 2 * 8, d + 2 * t + i / 2 * 8, seq_q, head_dim);
            }
            for (int n = 0; n < 2; ++n) {
                mma(s[n], a, pair(k, key + 8 * n + g, d + 2 * t, seq_k, head_dim),
                    pair(k, key + 8 * n + g, d + 2 * t + 8, seq_k, head_dim));
            }
        }
        unsigned weights[4];
        for (int half = 0; half < 2; ++half) {  // rows g and g + 8
            int row = first + g + 8 * half, last = causal ? row + seq_k - seq_q : seq_k - 1;
            float x[4], top = largest[half], part = 0.0f;
            for (int i = 0; i < 4; ++i) {
                int mine = key + i / 2 * 8 + 2 * t + i % 2;
                x[i] = mine < seq_k && mine <= last ? s[i / 2][2 * half + i % 2] * scale : -INFINITY;
                top = fmaxf(top, x[i]);
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
            float base = top == -INFINITY ? 0.0f : top, factor = expf(largest[half] - base);
            for (int i = 0; i < 4; ++i) part += x[i] = expf(x[i] - base);
            part += __shfl_xor_sync(0xffffffff, part, 1);
            part += __shfl_xor_sync(0xffffffff, part, 2);
            total[half] = total[half] * factor + part;
            largest[half] = top;
            weights[half] = pack(x[0], x[1]);
            weights[half + 2] = pack(x[2], x[3]);
            for (int c = 0; c < MOST / 8; ++c) o[c][2 * half] *= factor, o[c][2 * half + 1] *= factor;
        }
        for (int c = 0; 8 * c < head_dim; ++c) {
            unsigned b[2];
            for (int i = 0; i < 2; ++i) {
                int row = key + 2 * t + 8 * i, d = 8 * c + g;
                unsigned low = pair(v, row, d, seq_k, head_dim) & 0xffff;
                b[i] = pair(v, row + 1, d, seq_k, head_dim) << 16 | low;
            }
            mma(o[c], weights, b[0], b[1]);
        }
    }

    for (int half = 0; half < 2; ++half) {
        int row = first + g + 8 * half;
        if (row >= seq_q) continue;
        if (t == 0) lse[head * seq_q + row] = largest[half] + logf(total[half]);
        float share = total[half] == 0.0f ? 0.0f : 1.0f / total[half];
        for (int c = 0; 8 * c < head_dim; ++c) {
            for (int i = 0; i < 2; ++i) {
                int d = 8 * c + 2 * t + i;
                if (d >= head_dim) continue;
                out[(head * seq_q + row) * head_dim + d] = __float2half(o[c][2 * half + i] * share);
            }
        }
    }
}
