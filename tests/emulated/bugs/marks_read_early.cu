// Marks which of 16 values come and reads the marks while others still mark.
extern "C" __global__ void marks_read_early(const int* x, int* y)
{
    __shared__ int seen[16];
    const int t = threadIdx.x;
    if (t < 16) {
        seen[t] = 0;
    }
    __syncthreads();
    seen[x[t]] = 1;  // BUG: race
    if (t < 16) {
        y[t] = seen[t];  // BUG: race
    }
}
