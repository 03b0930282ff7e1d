// Half of each warp waits at a barrier that the other half never reaches.
extern "C" __global__ void divergent_barrier(const float* x, float* y)
{
    __shared__ float tile[64];
    const int t = threadIdx.x;
    tile[t] = x[t];
    if (t % 32 < 16) {
        __syncthreads();  // BUG: barrier_divergence
        y[t] = tile[t];
    }
}
