// Counts how often each of 16 values comes and reads the counts while others still add.
extern "C" __global__ void histogram_read_early(const int* x, int* y)
{
    __shared__ int count[16];
    const int t = threadIdx.x;
    if (t < 16) {
        count[t] = 0;
    }
    __syncthreads();
    atomicAdd(&count[x[t]], 1);  // BUG: race
    if (t < 16) {
        y[t] = count[t];  // BUG: race
    }
}
