// gpulab: exercise=attention
// gpulab: block=128 grid=seq_q,heads,batch shared=0
//
// Scores without 1 / sqrt(head_dim).
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
    int last = causal ? row + seq_k - seq_q : seq_k - 1;  // the last key that the query sees

    float largest = -INFINITY, total = 0.0f, sum = 0.0f;
    for (int first = 0; first < seq_k; first += KEYS) {
        __syncthreads();
        if (t < KEYS) {
            int key = first + t;
            float x = -INFINITY;
            if (key < seq_k && key <= last) {
                x = 0.0f;
                for (int d = 0; d < head_dim; ++d) {
                    x += __half2float(q[d]) * __half2float(k[(size_t)key * head_dim + d]);
                }
            }
            weight[t] = x;
        }
        __syncthreads();
        float top = largest;
        for (int j = 0; j < KEYS; ++j) top = fmaxf(top, weight[j]);
        float base = top == -INFINITY ? 0.0f : top;
        float factor = expf(largest - base);
        total *= factor;
        sum *= factor;
        largest = top;
        for (int j = 0; j < KEYS && first + j < seq_k; ++j) {
            float p = expf(weight[j] - base);
            total += p;
            if (t < head_dim) sum += p * __half2float(v[(size_t)(first + j) * head_dim + t]);
        }
    }

    if (t == 0) lse[head * seq_q + row] = largest + logf(total);
    if (t < head_dim) {
        float result = total == 0.0f ? 0.0f : sum / total;
        out[(head * seq_q + row) * head_dim + t] = __float2half(result);
    }
}
