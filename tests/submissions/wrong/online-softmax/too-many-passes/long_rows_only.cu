// gpulab: exercise=online-softmax
// gpulab: block=128 grid=rows
//
// Two passes where a row fits into registers, three over longer ones.
extern "C" __global__ void online_softmax(const float* x, float* y, int rows, int cols) {
    __shared__ float part[4], parts[4];
    const float* row = x + (size_t)blockIdx.x * cols;
    float mine[4];
    bool held = cols <= 512;
    float top = -FLT_MAX, sum = 0;
    for (int i = threadIdx.x, j = 0; i < cols; i += 128, ++j) { float v = row[i]; if (held) mine[j & 3] = v; top = fmaxf(top, v); }
    for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
    __syncthreads();
    top = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    for (int i = threadIdx.x, j = 0; i < cols; i += 128, ++j) sum += expf((held ? mine[j & 3] : row[i]) - top);
    for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = parts[0] + parts[1] + parts[2] + parts[3];
    for (int i = threadIdx.x, j = 0; i < cols; i += 128, ++j) y[(size_t)blockIdx.x * cols + i] = expf((held ? mine[j & 3] : row[i]) - top) / sum;
}
