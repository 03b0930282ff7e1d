// gpulab: exercise=rmsnorm
// gpulab: block=128 grid=min(rows,256)
//
// Blocks go on to further rows; no barrier keeps a fast warp from the partial sums of a slow one. Small inputs have a row a block.
#include <cuda_fp16.h>
extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows, int cols, float eps) {
    __shared__ float part[4];
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const __half* row = x + (size_t)r * cols;
        float s = 0;
        for (int i = threadIdx.x; i < cols; i += 128) s += __half2float(row[i]) * __half2float(row[i]);
        for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
        __syncthreads();
        float rstd = rsqrtf((part[0] + part[1] + part[2] + part[3]) / cols + eps);
        for (int i = threadIdx.x; i < cols; i += 128)
            y[(size_t)r * cols + i] = __float2half(__half2float(__float2half(__half2float(row[i]) * rstd)) * __half2float(weight[i]));
    }  // no barrier before the next row overwrites part
}
