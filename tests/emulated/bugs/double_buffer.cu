// Reverses each chunk of a stream through two buffers in turn; the barrier is there in the first round
// only, as if the second buffer made the others superfluous.
extern "C" __global__ void double_buffer(const float* x, float* y, int chunks)
{
    __shared__ float buffer[2][64];
    const int t = threadIdx.x;
    buffer[0][t] = x[t];
    for (int i = 0; i < chunks; ++i) {
        if (i == 0) __syncthreads();
        if (i + 1 < chunks) {
            buffer[(i + 1) % 2][t] = x[(i + 1) * 64 + t];  // BUG: race
        }
        y[i * 64 + t] = buffer[i % 2][63 - t];  // BUG: race
    }
}
