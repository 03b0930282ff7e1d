// A tiled matrix product with both of its barriers.
constexpr int TILE = 16;

extern "C" __global__ void matmul_no_second_barrier(const float* a, const float* b, float* c, int n)
{
    __shared__ float as[TILE][TILE];
    __shared__ float bs[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < n; k0 += TILE) {
        as[ty][tx] = a[row * n + k0 + tx];
        bs[ty][tx] = b[(k0 + ty) * n + col];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) {
            sum = fmaf(as[ty][k], bs[k][tx], sum);
        }
        __syncthreads();
    }
    c[row * n + col] = sum;
}
