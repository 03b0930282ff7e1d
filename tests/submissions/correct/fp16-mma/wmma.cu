// gpulab: exercise=fp16-mma
// gpulab: block=32 grid=ceil(n/16),ceil(m/16) shared=0
//
// The wmma interface: tiles of 16 x 16 in shared memory, a warp a tile of C.
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    __shared__ __half ta[16 * 16], tb[16 * 16];
    __shared__ float tc[16 * 16];
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    for (int t = 0; t < k; t += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) {
            int y = i / 16, x = i % 16;
            ta[i] = row + y < m && t + x < k ? a[(size_t)(row + y) * k + t + x] : __float2half(0.0f);
            tb[i] = t + y < k && col + x < n ? b[(size_t)(t + y) * n + col + x] : __float2half(0.0f);
        }
        __syncwarp();
        wmma::load_matrix_sync(fa, ta, 16);
        wmma::load_matrix_sync(fb, tb, 16);
        wmma::mma_sync(acc, fa, fb, acc);
        __syncwarp();
    }
    wmma::store_matrix_sync(tc, acc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) {
        int y = i / 16, x = i % 16;
        if (row + y < m && col + x < n) c[(size_t)(row + y) * n + col + x] = tc[i];
    }
}
