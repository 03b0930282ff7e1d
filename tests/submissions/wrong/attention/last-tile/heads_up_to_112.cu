// gpulab: exercise=attention
// gpulab: block=128 grid=ceil(seq_q/4),heads,batch shared=0
//
// Tiles have room for heads of 112 columns. The order of two arrays is the compiler's:
// in one struct the query follows the tile everywhere.
#include <cuda_fp16.h>

#define WARPS 4
#define KEYS 32
#define MOST 112  // largest head_dim

// Rows first .. first + KEYS - 1 of a head as float, zeros beyond its last.
__device__ void bring(float (*tile)[MOST + 1], const __half* from, int first, int rows, int columns) {
    __syncthreads();
    for (int i = threadIdx.x; i < KEYS * columns; i += 32 * WARPS) {
        int row = i / columns, d = i % columns;
        tile[row][d] =
            first + row < rows ? __half2float(from[(size_t)(first + row) * columns + d]) : 0.0f;
    }
    __syncthreads();
}

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    __shared__ struct {
        float tile[KEYS][MOST + 1];
        float query[WARPS][MOST];
    } held;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
    int row = blockIdx.x * WARPS + warp;
    k += head * seq_k * head_dim;
    v += head * seq_k * head_dim;

    float scale = 1.0f / sqrtf((float)head_dim);
    for (int d = lane; d < head_dim && row < seq_q; d += 32) {
        held.query[warp][d] = __half2float(q[(head * seq_q + row) * head_dim + d]) * scale;
    }
    __syncwarp();
    int seen = row >= seq_q ? 0 : causal ? min(seq_k, row + seq_k - seq_q + 1) : seq_k;

    float sums[(MOST + 31) / 32] = {};
    float largest = -INFINITY, total = 0.0f;
    for (int first = 0; first < seq_k; first += KEYS) {
        bring(held.tile, k, first, seq_k, head_dim);
        float x = -INFINITY;
        if (first + lane < seen) {
            x = 0.0f;
            for (int d = 0; d < head_dim; ++d) x += held.query[warp][d] * held.tile[lane][d];
        }
        float top = x;
        for (int step = 16; step > 0; step /= 2) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
        }
        top = fmaxf(largest, top);
        float base = top == -INFINITY ? 0.0f : top;  // no key yet
        float factor = expf(largest - base), p = expf(x - base), part = p;
        for (int step = 16; step > 0; step /= 2) part += __shfl_xor_sync(0xffffffff, part, step);
        total = total * factor + part;
        largest = top;
        bring(held.tile, v, first, seq_k, head_dim);
        for (int c = 0; c < (MOST + 31) / 32; ++c) sums[c] *= factor;
        for (int j = 0; j < KEYS; ++j) {
            float weight = __shfl_sync(0xffffffff, p, j);
            for (int c = 0; c < (MOST + 31) / 32; ++c) {
                if (lane + 32 * c < head_dim) sums[c] += weight * held.tile[j][lane + 32 * c];
            }
        }
    }

    if (row >= seq_q) return;
    if (lane == 0) lse[head * seq_q + row] = largest + logf(total);
    float share = total == 0.0f ? 0.0f : 1.0f / total;
    for (int c = 0; c < (MOST + 31) / 32; ++c) {
        int d = lane + 32 * c;
        if (d < head_dim) out[(head * seq_q + row) * head_dim + d] = __float2half(sums[c] * share);
    }
}
