// gpulab: exercise=dequant-int4
// gpulab: block=32 grid=ceil(n/8),ceil(m/16) shared=0
//
// A warp computes 16 x 8 results with mma.sync on the codes themselves, which half holds exactly;
// the accumulator of each group is scaled and added in float.
#include <cuda_fp16.h>

__device__ unsigned pack(__half low, __half high) {
    return (unsigned)__half_as_ushort(high) << 16 | __half_as_ushort(low);
}

extern "C" __global__ void matmul_int4(const __half* a, const unsigned char* w,
                                       const __half* scales, float* c, int m, int n, int k,
                                       int group) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    int row = blockIdx.y * 16 + g, column = blockIdx.x * 8;
    __half zero = __float2half(0.0f);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int first = 0; first < k; first += group) {
        int end = min(k, first + group);
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int step = first; step < end; step += 16) {
            unsigned left[4], right[2];
            for (int i = 0; i < 4; ++i) {
                int r = row + i % 2 * 8, at = step + 2 * t + i / 2 * 8;
                __half low = r < m && at < end ? a[(size_t)r * k + at] : zero;
                __half high = r < m && at + 1 < end ? a[(size_t)r * k + at + 1] : zero;
                left[i] = pack(low, high);
            }
            for (int i = 0; i < 2; ++i) {
                int at = step + 2 * t + 8 * i;
                unsigned byte = at < end && column + g < n ? w[(size_t)(at / 2) * n + column + g] : 0;
                __half high = at + 1 < end ? __int2half_rn((signed char)byte >> 4) : zero;
                right[i] = pack(__int2half_rn((int)(byte << 28) >> 28), high);
            }
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(part[0]), "+f"(part[1]), "+f"(part[2]), "+f"(part[3])
                : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
        }
        for (int i = 0; i < 4; ++i) {
            int at = column + 2 * t + i % 2;
            if (at < n) sum[i] += part[i] * __half2float(scales[(size_t)(first / group) * n + at]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        int r = row + i / 2 * 8, at = column + 2 * t + i % 2;
        if (r < m && at < n) c[(size_t)r * n + at] = sum[i];
    }
}
