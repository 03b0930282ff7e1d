// gpulab: exercise=attention
// gpulab: block=32 grid=ceil(seq_q/32),heads,batch shared=0
//
// A thread a query, key by key, with the running maximum of the online softmax.
#include <cuda_fp16.h>

#define MOST 128

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= seq_q) return;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y, at = (head * seq_q + row) * head_dim;
    int seen = causal ? min(seq_k, row + seq_k - seq_q + 1) : seq_k;
    float sum[MOST], largest = -INFINITY, total = 0.0f;
    for (int d = 0; d < head_dim; ++d) sum[d] = 0.0f;
    for (int key = 0; key < seen; ++key) {
        const __half* mine = k + (head * seq_k + key) * head_dim;
        const __half* value = v + (head * seq_k + key) * head_dim;
        float x = 0.0f;
        for (int d = 0; d < head_dim; ++d) x += __half2float(q[at + d]) * __half2float(mine[d]);
        x *= rsqrtf((float)head_dim);
        if (x > largest) {
            float factor = __expf(largest - x);
            total *= factor;
            for (int d = 0; d < head_dim; ++d) sum[d] *= factor;
            largest = x;
        }
        float p = __expf(x - largest);
        total += p;
        for (int d = 0; d < head_dim; ++d) sum[d] += p * __half2float(value[d]);
    }
    lse[head * seq_q + row] = largest + __logf(total);
    for (int d = 0; d < head_dim; ++d) {
        out[at + d] = __float2half(seen > 0 ? sum[d] / total : 0.0f);
    }
}
