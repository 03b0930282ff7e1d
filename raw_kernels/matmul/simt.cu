// C (m, n) = A (m, k) B (k, n), row-major, any m, n, k >= 1; CUDA cores only.
//
// Idea: a block computes a kTile x kTile tile of C, one result a thread. It walks along k in steps
// of kTile: every thread brings one element of A and one of B to shared memory, then each reads a
// row of one tile and a column of the other. T is how inputs are stored, Acc what the sum is kept
// in, Out how the result is stored: nothing else differs between the rows of the table. Inputs stay
// as stored until the moment of use.
//
// Tails: elements beyond the matrix are zeros in the tiles, which add exactly nothing.
// Limit: m <= 65535 * kTile (grid.y).
// Order of the sum: one fused multiply-add per term, k ascending.
//
// Source: NVIDIA, CUDA C++ Programming Guide, "Shared Memory" (tiled matrix multiplication).
#include "common/formats.cuh"
#include "common/tile.cuh"

template <typename T, typename Acc, typename Out, int kTile>
__global__ void __launch_bounds__(kTile * kTile)
    matmul_simt(const T* __restrict__ a, const T* __restrict__ b, Out* __restrict__ c, int m, int n,
                int k) {
    __shared__ __align__(16) T tile_a[kTile][kTile];
    __shared__ __align__(16) T tile_b[kTile][kTile];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x;
    const T* row_of_a = a + (long long)row * k;
    const T* column_of_b = b + column;

    Acc sum = from_acc<Acc>(0.0f);
    for (int done = 0; done < k; done += kTile) {
        tile_a[y][x] = load_or_zero(row_of_a, done + x, row < m && done + x < k);
        tile_b[y][x] =
            load_or_zero(column_of_b, (long long)(done + y) * n, done + y < k && column < n);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTile; ++i) {
            sum = multiply_add(to_acc<Acc>(tile_a[y][i]), to_acc<Acc>(tile_b[i][x]), sum);
        }
        __syncthreads();
    }
    if (row < m && column < n) c[(long long)row * n + column] = from_acc<Out>(sum);
}
