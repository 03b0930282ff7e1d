// Every element becomes the mean of itself and its right neighbour.
extern "C" __global__ void blocks_in_place(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float right = i + 1 < n ? x[i + 1] : 0.0f;
    const float mean = 0.5f * (x[i] + right);
    y[i] = mean;
}
