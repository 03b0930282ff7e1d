// gpulab: exercise=attention
// gpulab: block=128 grid=seq_q,heads,batch shared=4*seq_k
//
// A block a query; products and exponentials are float, everything that is summed is double.
#include <cuda_fp16.h>

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    extern __shared__ float weight[];
    int t = threadIdx.x, row = blockIdx.x;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y, at = (head * seq_q + row) * head_dim;
    int seen = causal ? row + seq_k - seq_q + 1 : seq_k;
    for (int key = t; key < seen; key += blockDim.x) {
        double x = 0.0;
        for (int d = 0; d < head_dim; ++d) {  // products of halves are exact in float
            float product = __half2float(q[at + d]) * __half2float(k[(head * seq_k + key) * head_dim + d]);
            x += (double)product;
        }
        weight[key] = (float)x / sqrtf((float)head_dim);
    }
    __syncthreads();
    float largest = -INFINITY;
    for (int key = 0; key < seen; ++key) largest = fmaxf(largest, weight[key]);
    __syncthreads();
    for (int key = t; key < seen; key += blockDim.x) weight[key] = expf(weight[key] - largest);
    __syncthreads();
    double total = 0.0, sum = 0.0;
    for (int key = 0; key < seen; ++key) {
        total += (double)weight[key];
        if (t >= head_dim) continue;
        float product = weight[key] * __half2float(v[(head * seq_k + key) * head_dim + t]);
        sum += (double)product;
    }
    if (t == 0) lse[head * seq_q + row] = largest + logf((float)total);
    if (t < head_dim) out[at + t] = __float2half(seen > 0 ? (float)sum / (float)total : 0.0f);
}
