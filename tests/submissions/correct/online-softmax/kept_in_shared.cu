// gpulab: exercise=online-softmax
// gpulab: block=32 grid=rows shared=4*cols
//
// A row that fits is read once; the passes are over shared memory.
extern "C" __global__ void online_softmax(const float* x, float* y, int rows, int cols) {
    extern __shared__ float kept[];
    float m = -INFINITY, s = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32) {
        kept[i] = x[(size_t)blockIdx.x * cols + i];
        m = fmaxf(m, kept[i]);
    }
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
    for (int i = threadIdx.x; i < cols; i += 32) s += kept[i] = expf(kept[i] - m);
    for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    for (int i = threadIdx.x; i < cols; i += 32) y[(size_t)blockIdx.x * cols + i] = kept[i] / s;
}
