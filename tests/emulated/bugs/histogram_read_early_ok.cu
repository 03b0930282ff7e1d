// Counts how often each of 16 values comes.
extern "C" __global__ void histogram_read_early(const int* x, int* y)
{
    __shared__ int count[16];
    const int t = threadIdx.x;
    if (t < 16) {
        count[t] = 0;
    }
    __syncthreads();
    atomicAdd(&count[x[t]], 1);
    __syncthreads();
    if (t < 16) {
        y[t] = count[t];
    }
}
