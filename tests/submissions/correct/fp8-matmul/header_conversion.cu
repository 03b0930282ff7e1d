// gpulab: exercise=fp8-matmul
// gpulab: block=32,4 grid=ceil(n/32),ceil(m/4)
//
// The header's conversion, and Kahan's sum in a template.
#include <cuda_fp8.h>
#include <cuda_fp16.h>
template <typename T> struct Sum { T s = 0, c = 0; __device__ void add(T v) { T y = v - c, t = s + y; c = (t - s) - y; s = t; } };
extern "C" __global__ void matmul(const unsigned char* a, const unsigned char* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * 4 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || column >= n) return;
    auto dec = [] (unsigned char u) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(u, __NV_E4M3))); };
    Sum<float> s;
    for (int i = 0; i < k; ++i) s.add(dec(__ldg(a + (size_t)row * k + i)) * dec(__ldcs(b + (size_t)i * n + column)));
    c[(size_t)row * n + column] = s.s;
}
