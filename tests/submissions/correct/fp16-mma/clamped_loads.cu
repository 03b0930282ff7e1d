// gpulab: exercise=fp16-mma
// gpulab: block=32,2 grid=ceil(n/8),ceil(m/32)
#include <cuda_fp16.h>
// Rows and columns beyond the matrix are read from its last ones and not stored; terms beyond k are zeros.
extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) __half ta[2][16][24];
    int lane = threadIdx.x, w = threadIdx.y, row0 = blockIdx.y * 32 + w * 16, col0 = blockIdx.x * 8;
    float d[4] = {};
    for (int t = 0; t < k; t += 16) {
        for (int i = lane; i < 256; i += 32) {
            int r = min(row0 + i / 16, m - 1), s = t + i % 16;
            ta[w][i / 16][i % 16] = s < k ? a[(size_t)r * k + s] : __float2half(0.0f);
        }
        __syncwarp();
        unsigned ra[4], rb[2], at = (unsigned)__cvta_generic_to_shared(&ta[w][lane % 16][lane / 16 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(at));
        int col = min(col0 + lane / 4, n - 1), s = t + lane % 4 * 2;
        for (int i = 0; i < 2; ++i) {
            int p = s + 8 * i;
            __half2 v = __halves2half2(p < k ? b[(size_t)p * n + col] : __half(0), p + 1 < k ? b[(size_t)(p + 1) * n + col] : __half(0));
            rb[i] = reinterpret_cast<unsigned&>(v);
        }
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        __syncwarp();
    }
    for (int i = 0; i < 4; ++i) {
        int r = row0 + lane / 4 + i / 2 * 8, s = col0 + lane % 4 * 2 + i % 2;
        if (r < m && s < n) c[(size_t)r * n + s] = d[i];
    }
}
