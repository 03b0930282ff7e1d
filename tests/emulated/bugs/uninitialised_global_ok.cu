// Adds two vectors.
extern "C" __global__ void uninitialised_global(const float* x, float* sum, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        sum[i] = 0.0f;
        sum[i] += x[i];
        y[i] = sum[i];
    }
}
