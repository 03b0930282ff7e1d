// gpulab: exercise=online-softmax
// gpulab: block=64 grid=rows
//
// Tile by tile, as attention does: the tile's maximum, one rescaling, the tile's sum.
extern "C" __global__ void online_softmax(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[64];
    x += (size_t)blockIdx.x * cols;
    y += (size_t)blockIdx.x * cols;
    float m = -FLT_MAX, s = 0.0f;
    for (int start = 0; start < cols; start += 64) {
        tile[threadIdx.x] = start + threadIdx.x < cols ? x[start + threadIdx.x] : -INFINITY;
        __syncthreads();
        float larger = m;
        for (int i = 0; i < 64; ++i) larger = fmaxf(larger, tile[i]);
        s *= expf(m - larger);
        for (int i = 0; i < 64; ++i) s += expf(tile[i] - larger);
        m = larger;
        __syncthreads();
    }
    for (int i = threadIdx.x; i < cols; i += 64) y[i] = expf(x[i] - m) / s;
}
