// Scales a vector whose length is no multiple of the block, as if it were.
extern "C" __global__ void no_tail_guard(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 2.0f * x[i];  // BUG: out_of_bounds
}
