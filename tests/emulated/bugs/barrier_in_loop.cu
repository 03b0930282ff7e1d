// Sums a row in steps of a block's width; the barrier stands inside the guard of the tail,
// so that in the last step half of a warp passes it by and waits for the others elsewhere.
extern "C" __global__ void barrier_in_loop(const float* x, float* y, int n)
{
    __shared__ float tile[64];
    const int t = threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < n; first += 64) {
        if (first + t < n) {
            tile[t] = x[first + t];
            __syncthreads();  // BUG: barrier_divergence
            sum += tile[t];
        }
    }
    __syncthreads();  // BUG: barrier_divergence
    y[t] = sum;
}
