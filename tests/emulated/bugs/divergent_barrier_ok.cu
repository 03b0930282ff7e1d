// Everybody meets at the barrier; then half of each warp has something to do.
extern "C" __global__ void divergent_barrier(const float* x, float* y)
{
    __shared__ float tile[64];
    const int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
    if (t % 32 < 16) {
        y[t] = tile[t ^ 16];
    }
}
