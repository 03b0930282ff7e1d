// gpulab: exercise=attention
// gpulab: block=32 grid=seq_q,heads,batch shared=0
//
// A warp a query; everything is computed in double, three times over the keys.
#include <cuda_fp16.h>

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out,
                                     float* lse, int batch, int heads, int seq_q, int seq_k,
                                     int head_dim, int causal) {
    int row = blockIdx.x;
    size_t head = (size_t)blockIdx.z * heads + blockIdx.y, at = (head * seq_q + row) * head_dim;
    int seen = causal ? row + seq_k - seq_q + 1 : seq_k;
    auto score = [&](int key) {
        double x = 0.0;
        for (int d = 0; d < head_dim; ++d) {
            x += (double)__half2float(q[at + d]) *
                 __half2float(k[(head * seq_k + key) * head_dim + d]);
        }
        return x / sqrt((double)head_dim);
    };
    double largest = -INFINITY, total = 0.0;
    for (int key = threadIdx.x; key < seen; key += 32) largest = fmax(largest, score(key));
    for (int step = 16; step > 0; step /= 2) {
        largest = fmax(largest, __shfl_xor_sync(0xffffffff, largest, step));
    }
    for (int key = threadIdx.x; key < seen; key += 32) total += exp(score(key) - largest);
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
    if (threadIdx.x == 0) lse[head * seq_q + row] = (float)(largest + log(total));
    for (int c = 0; c < head_dim; c += 32) {
        int d = c + threadIdx.x;
        double sum = 0.0;
        for (int key = 0; key < seen; ++key) {
            double p = exp(score(key) - largest);
            if (d < head_dim) sum += p * __half2float(v[(head * seq_k + key) * head_dim + d]);
        }
        if (d < head_dim) out[at + d] = __double2half(seen > 0 ? sum / total : 0.0);
    }
}
