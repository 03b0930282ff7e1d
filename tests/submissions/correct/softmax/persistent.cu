// A persistent softmax: the declaration is not on the first line, and has tabs and blanks.
	//	gpulab:   exercise=softmax
  // gpulab: block=64,2,1   grid=min(rows,3+1*2),1,1
#include <cuda_fp16.h>
template <typename F> __device__ __forceinline__ float reduce(float v, float* part, F f) {
    int t = threadIdx.y * blockDim.x + threadIdx.x;
    for (int s = 1; s < 32; s <<= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, s));
    __syncthreads();
    if (t % 32 == 0) part[t / 32] = v;
    __syncthreads();
    return f(f(part[0], part[1]), f(part[2], part[3]));
}
template <int N> struct Row { float v[N]; };
template <int THREADS>
__device__ void body(const __half* __restrict__ x, __half* __restrict__ y, int rows, int cols) {
    __shared__ float part[4];
    int t = threadIdx.y * blockDim.x + threadIdx.x;
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const __half* row = x + (size_t)r * cols;
        float top = -INFINITY, sum = 0;
        for (int i = t; i < cols; i += THREADS) top = fmaxf(top, __half2float(__ldg(row + i)));
        top = reduce(top, part, [](float a, float b) { return fmaxf(a, b); });
        for (int i = t; i < cols; i += THREADS) sum += __expf(__half2float(row[i]) - top);
        sum = reduce(sum, part, [](float a, float b) { return a + b; });
        float inverse = __frcp_rn(sum);
        for (int i = t; i < cols; i += THREADS) y[(size_t)r * cols + i] = __float2half_rn(__expf(__half2float(row[i]) - top) * inverse);
    }
}
extern "C" {
__global__ void __launch_bounds__(128) softmax(const __half* __restrict__ const x, __half* __restrict__ const y, const int rows, const int cols) {
    body<128>(x, y, rows, cols);
}
}
