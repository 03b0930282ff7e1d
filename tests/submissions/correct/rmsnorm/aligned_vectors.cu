// gpulab: exercise=rmsnorm
// gpulab: block=min(256,32*ceil(cols/256)) grid=rows
#include <cuda_fp16.h>
// Whole vectors of eight where a row is aligned, halves before and behind.
extern "C" __global__ void rmsnorm(const __half* __restrict__ x, const __half* __restrict__ weight, __half* __restrict__ y, int rows, int cols, float eps) {
    __shared__ float part[8];
    const __half* p = x + (size_t)blockIdx.x * cols;
    __half* q = y + (size_t)blockIdx.x * cols;
    int head = (int)((16 - ((size_t)p & 15)) & 15) / 2;
    head = min(head, cols);
    int vectors = (cols - head) / 8, tail = head + 8 * vectors, t = threadIdx.x, n = blockDim.x;
    float s = 0;
    for (int i = t; i < head; i += n) { float v = __half2float(p[i]); s = fmaf(v, v, s); }
    for (int i = t; i < vectors; i += n) {
        uint4 raw = ((const uint4*)(p + head))[i];
        const __half2* h = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
        for (int j = 0; j < 4; ++j) { float2 f = __half22float2(h[j]); s = fmaf(f.x, f.x, s); s = fmaf(f.y, f.y, s); }
    }
    for (int i = tail + t; i < cols; i += n) { float v = __half2float(p[i]); s = fmaf(v, v, s); }
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
    if (t % 32 == 0) part[t / 32] = s;
    __syncthreads();
    s = 0;
    for (int i = 0; i < n / 32; ++i) s += part[i];
    float rstd = 1.0f / sqrtf(__fdividef(s, (float)cols) + eps);
    auto one = [&](int i, __half v) { return __hmul(__float2half_rn(__half2float(v) * rstd), weight[i]); };
    for (int i = t; i < head; i += n) q[i] = one(i, p[i]);
    for (int i = t; i < vectors; i += n) {
        uint4 raw = ((const uint4*)(p + head))[i], out;
        const __half* h = reinterpret_cast<const __half*>(&raw);
        __half* o = reinterpret_cast<__half*>(&out);
        for (int j = 0; j < 8; ++j) o[j] = one(head + 8 * i + j, h[j]);
        ((uint4*)(q + head))[i] = out;
    }
    for (int i = tail + t; i < cols; i += n) q[i] = one(i, p[i]);
}
