// gpulab: exercise=attention
// gpulab: block=64 grid=seq_q,heads,batch shared=4*seq_k
//
// A block a query; all its scores lie in shared memory, then come maximum, sum and output.
#include <cuda_fp16.h>

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    extern __shared__ float score[];
    int row = blockIdx.x;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
    q += (head * seq_q + row) * head_dim;
    k += head * seq_k * head_dim;
    v += head * seq_k * head_dim;
    out += (head * seq_q + row) * head_dim;
    int seen = causal ? row + seq_k - seq_q + 1 : seq_k;

    for (int key = threadIdx.x; key < seen; key += blockDim.x) {
        float x = 0.0f;
        for (int d = 0; d < head_dim; ++d) {
            x += __half2float(q[d]) * __half2float(k[(size_t)key * head_dim + d]);
        }
        score[key] = x / sqrtf((float)head_dim);
    }
    __syncthreads();
    if (seen <= 0) {
        for (int d = threadIdx.x; d < head_dim; d += blockDim.x) out[d] = __float2half(0.0f);
        if (threadIdx.x == 0) lse[head * seq_q + row] = -INFINITY;
        return;
    }
    float largest = score[0], total = 0.0f;
    for (int key = 1; key < seen; ++key) largest = fmaxf(largest, score[key]);
    for (int key = seen - 1; key >= 0; --key) total += expf(score[key] - largest);
    for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
        float sum = 0.0f;
        for (int key = 0; key < seen; ++key) {
            sum += expf(score[key] - largest) / total * __half2float(v[(size_t)key * head_dim + d]);
        }
        out[d] = __float2half(sum);
    }
    if (threadIdx.x == 0) lse[head * seq_q + row] = largest + logf(total);
}
