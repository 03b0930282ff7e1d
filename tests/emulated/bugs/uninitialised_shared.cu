// Sums a shared tile of which only a half was ever filled.
extern "C" __global__ void uninitialised_shared(const float* x, float* y)
{
    __shared__ float tile[64];
    const int t = threadIdx.x;
    if (t < 32) tile[t] = x[t];
    __syncthreads();
    if (t == 0) {
        float sum = 0.0f;
        for (int k = 0; k < 64; ++k) {
            sum += tile[k];  // BUG: uninitialised
        }
        *y = sum;
    }
}
