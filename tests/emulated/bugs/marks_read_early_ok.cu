// Marks which of 16 values come and reads the marks when everybody has marked.
extern "C" __global__ void marks_read_early(const int* x, int* y)
{
    __shared__ int seen[16];
    const int t = threadIdx.x;
    if (t < 16) {
        seen[t] = 0;
    }
    __syncthreads();
    seen[x[t]] = 1;
    __syncthreads();
    if (t < 16) {
        y[t] = seen[t];
    }
}
