// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16),2 shared=0
//
// Two blocks share a tile, each with half of the terms. They add to the result in turn: the first
// stores, each later one waits until it is its turn, the last one lets the next launch begin.
#include <cuda_fp16.h>

#define PARTS 2
#define MOST_TILES 65536

__device__ int turn[MOST_TILES];

extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x, part = blockIdx.z;
    const int terms = (k + PARTS - 1) / PARTS, first = part * terms;
    const bool inside = row < m && column < n, waits = threadIdx.x + threadIdx.y == 0;
    float sum = 0.0f;
    if (inside) {
        for (int t = first; t < min(k, first + terms); ++t) {
            sum += __half2float(a[(size_t)row * k + t]) * __half2float(b[(size_t)t * n + column]);
        }
    }
    if (waits) {
        while (atomicAdd(&turn[tile], 0) != part) {
        }
        __threadfence();
    }
    __syncthreads();
    volatile float* at = c + (size_t)row * n + column;
    if (inside) *at = part == 0 ? sum : *at + sum;
    __threadfence();
    __syncthreads();
    if (waits) atomicExch(&turn[tile], part == PARTS - 1 ? 0 : part + 1);
}
