// gpulab: exercise=attention
// gpulab: block=128 grid=seq_q,heads,batch shared=0
//
// out = softmax(Q K^T / sqrt(head_dim)) V of every head, and the log-sum-exp of every query: a block
// a query. For scores a thread owns a key, for the output it owns a column.
// This file compiles and runs, but a query sees only the first KEYS keys. Make it right.
#include <cuda_fp16.h>

#define KEYS 32

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    __shared__ float weight[KEYS];
    int t = threadIdx.x, row = blockIdx.x;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
    q += (head * seq_q + row) * head_dim;
    k += head * seq_k * head_dim;
    v += head * seq_k * head_dim;

    // Your work: walk over the keys in tiles, with a running maximum.
    int seen = causal ? row + seq_k - seq_q + 1 : seq_k;
    seen = max(0, min(seen, KEYS));
    if (t < KEYS) {
        float x = 0.0f;
        if (t < seen) {
            for (int d = 0; d < head_dim; ++d) {
                x += __half2float(q[d]) * __half2float(k[(size_t)t * head_dim + d]);
            }
        }
        weight[t] = x / sqrtf((float)head_dim);
    }
    __syncthreads();
    float largest = -INFINITY, total = 0.0f, sum = 0.0f;
    for (int j = 0; j < seen; ++j) largest = fmaxf(largest, weight[j]);
    for (int j = 0; j < seen; ++j) {
        float p = expf(weight[j] - largest);
        total += p;
        if (t < head_dim) sum += p * __half2float(v[(size_t)j * head_dim + t]);
    }

    if (t == 0) lse[head * seq_q + row] = largest + logf(total);
    if (t < head_dim) {
        float result = total == 0.0f ? 0.0f : sum / total;
        out[(head * seq_q + row) * head_dim + t] = __float2half(result);
    }
}
