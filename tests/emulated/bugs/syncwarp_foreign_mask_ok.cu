// The first half of a warp meets under a mask that names it.
extern "C" __global__ void syncwarp_foreign_mask(const float* x, float* y)
{
    __shared__ float tile[32];
    const int lane = threadIdx.x;
    const unsigned half = __ballot_sync(0xffffffffu, lane < 16);
    tile[lane] = 0.0f;
    __syncthreads();
    if (lane < 16) {
        tile[lane] = x[lane];
        __syncwarp(half);
        if (lane == 0) {
            for (int k = 0; k < 16; ++k) {
                y[k] = tile[k];
            }
        }
    }
    __syncthreads();
    y[lane + 16] = tile[lane];
}
