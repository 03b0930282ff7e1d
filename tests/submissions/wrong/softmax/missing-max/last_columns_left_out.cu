// gpulab: exercise=softmax
// gpulab: block=128 grid=rows
//
// The maximum is that of whole vectors of 8 columns; the sum sees the others too.
#include <cuda_fp16.h>
extern "C" __global__ void softmax(const __half* x, __half* y, int rows, int cols) {
    __shared__ float part[4];
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < (cols < 8 ? cols : cols / 8 * 8); i += 128) largest = fmaxf(largest, __half2float(x[i]));
    for (int s = 16; s > 0; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    if (lane == 0) part[warp] = largest;
    __syncthreads();
    largest = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    
    __syncthreads();
    float total = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 128) total += expf(__half2float(x[i]) - largest);
    for (int s = 16; s > 0; s /= 2) total += __shfl_xor_sync(~0u, total, s);
    if (lane == 0) part[warp] = total;
    __syncthreads();
    total = (part[0] + part[1]) + (part[2] + part[3]);
    for (int i = threadIdx.x; i < cols; i += 128) y[i] = __float2half(expf(__half2float(x[i]) - largest) / total);
}
