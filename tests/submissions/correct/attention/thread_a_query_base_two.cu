// gpulab: exercise=attention
// gpulab: block=128 grid=ceil(seq_q/128),batch*heads
#include <cuda_fp16.h>
// A thread a query; powers of two with the scale folded in, as fast attention kernels do it.
extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out, float* lse, int batch, int heads, int seq_q, int seq_k, int head_dim, int causal) {
    int row = blockIdx.x * 128 + threadIdx.x;
    size_t head = blockIdx.y;
    if (row >= seq_q) return;
    q += (head * seq_q + row) * head_dim; k += head * seq_k * head_dim; v += head * seq_k * head_dim;
    float mine[128], sums[128];
    for (int d = 0; d < head_dim; ++d) { mine[d] = __half2float(q[d]); sums[d] = 0; }
    float scale = rsqrtf((float)head_dim) * 1.44269504f, top = -INFINITY, total = 0;
    int seen = causal ? min(seq_k, max(0, row + seq_k - seq_q + 1)) : seq_k;
    for (int j = 0; j < seen; ++j) {
        float s = 0;
        for (int d = 0; d < head_dim; ++d) s = fmaf(mine[d], __half2float(k[(size_t)j * head_dim + d]), s);
        s *= scale;
        if (s > top || s != s) { float f = exp2f(top - s); total *= f; for (int d = 0; d < head_dim; ++d) sums[d] *= f; top = s; }
        float p = exp2f(s - top);
        total += p;
        for (int d = 0; d < head_dim; ++d) sums[d] = fmaf(p, __half2float(v[(size_t)j * head_dim + d]), sums[d]);
    }
    for (int d = 0; d < head_dim; ++d) out[(head * seq_q + row) * head_dim + d] = __float2half(total == 0 ? 0.0f : sums[d] / total);
    lse[head * seq_q + row] = total == 0 ? -INFINITY : (top + log2f(total)) * 0.69314718f;
}
