// Sums a row in steps of a block's width; the barrier stands outside the guard of the tail.
extern "C" __global__ void barrier_in_loop(const float* x, float* y, int n)
{
    __shared__ float tile[64];
    const int t = threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < n; first += 64) {
        if (first + t < n) {
            tile[t] = x[first + t];
        }
        __syncthreads();
        if (first + t < n) {
            sum += tile[t];
        }
    }
    __syncthreads();
    y[t] = sum;
}
