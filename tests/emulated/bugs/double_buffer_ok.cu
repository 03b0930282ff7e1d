// Reverses each chunk of a stream through two buffers in turn.
extern "C" __global__ void double_buffer(const float* x, float* y, int chunks)
{
    __shared__ float buffer[2][64];
    const int t = threadIdx.x;
    buffer[0][t] = x[t];
    for (int i = 0; i < chunks; ++i) {
        __syncthreads();
        if (i + 1 < chunks) {
            buffer[(i + 1) % 2][t] = x[(i + 1) * 64 + t];
        }
        y[i * 64 + t] = buffer[i % 2][63 - t];
    }
}
