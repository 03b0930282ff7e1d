// Adds two vectors, taking what happens to be in the sum.
extern "C" __global__ void uninitialised_global(const float* x, float* sum, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        sum[i] += x[i];  // BUG: uninitialised
        y[i] = sum[i];
    }
}
