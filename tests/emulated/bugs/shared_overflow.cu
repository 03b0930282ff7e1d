// Differences of neighbours through a shared tile that has no room for the last one.
extern "C" __global__ void shared_overflow(const float* x, float* y)
{
    __shared__ float tile[128];
    const int t = threadIdx.x;
    tile[t] = x[t];
    if (t == 0) {
        tile[blockDim.x] = 0.0f;  // BUG: out_of_bounds
    }
    __syncthreads();
    y[t] = tile[t + 1] - tile[t];
}
