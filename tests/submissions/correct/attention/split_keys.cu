// gpulab: exercise=attention
// gpulab: block=128 grid=seq_q,heads,batch shared=0
//
// A block a query; each of its four warps walks over every fourth key from the last to the first,
// then their maxima, sums and outputs are merged.
#include <cuda_fp16.h>

#define WARPS 4
#define MOST 128

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    __shared__ float part[WARPS][MOST], top[WARPS], weight[WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
    int seen = causal ? row + seq_k - seq_q + 1 : seq_k;
    float own[MOST / 32], sums[MOST / 32], largest = -INFINITY, total = 0.0f;
    for (int c = 0; c < MOST / 32; ++c) {
        int d = lane + 32 * c;
        own[c] = d < head_dim ? __half2float(q[(head * seq_q + row) * head_dim + d]) : 0.0f;
        sums[c] = 0.0f;
    }
    for (int key = seen - 1 - warp; key >= 0; key -= WARPS) {
        size_t at = (head * seq_k + key) * head_dim;
        float x = 0.0f;
        for (int c = 0; c < MOST / 32; ++c) {
            if (lane + 32 * c < head_dim) x += own[c] * __half2float(k[at + lane + 32 * c]);
        }
        for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
        x /= sqrtf((float)head_dim);
        float now = fmaxf(largest, x);
        float factor = exp2f((largest - now) * 1.44269504f), p = exp2f((x - now) * 1.44269504f);
        largest = now;
        total = total * factor + p;
        for (int c = 0; c < MOST / 32; ++c) {
            if (lane + 32 * c >= head_dim) continue;
            sums[c] = sums[c] * factor + p * __half2float(v[at + lane + 32 * c]);
        }
    }
    for (int c = 0; c < MOST / 32; ++c) part[warp][lane + 32 * c] = sums[c];
    if (lane == 0) top[warp] = largest, weight[warp] = total;
    __syncthreads();
    if (threadIdx.x >= head_dim && threadIdx.x > 0) return;
    largest = -INFINITY;
    for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, top[w]);
    float result = 0.0f;
    total = 0.0f;
    for (int w = 0; w < WARPS && seen > 0; ++w) {
        float factor = expf(top[w] - largest);
        total += factor * weight[w];
        result += factor * part[w][threadIdx.x];
    }
    if (threadIdx.x == 0) lse[head * seq_q + row] = largest + logf(total);
    if (threadIdx.x < head_dim) {
        out[(head * seq_q + row) * head_dim + threadIdx.x] =
            __float2half(seen > 0 ? result / total : 0.0f);
    }
}
