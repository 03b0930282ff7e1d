// gpulab: exercise=online-softmax
// gpulab: block=128 grid=rows shared=0
//
// Two passes; the maximum starts at -1e30, which some rows of floats never reach.
#define THREADS 128

__device__ float2 merge(float2 a, float2 b) {
    float m = fmaxf(a.x, b.x);
    return make_float2(m, a.y * expf(a.x - m) + b.y * expf(b.x - m));
}

// The pair (m, s) stands for s e^m. Merged over all threads of the block, in every thread.
__device__ float2 block_merge(float2 pair) {
    __shared__ float2 part[THREADS / 32];
    for (int step = 16; step > 0; step /= 2) {
        float m = __shfl_xor_sync(0xffffffff, pair.x, step);
        float s = __shfl_xor_sync(0xffffffff, pair.y, step);
        pair = merge(pair, make_float2(m, s));
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = pair;
    __syncthreads();
    pair = part[0];
    for (int i = 1; i < THREADS / 32; ++i) pair = merge(pair, part[i]);
    return pair;
}

extern "C" __global__ void online_softmax(const float* x, float* y, int rows, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;

    // No masked element exceeds the largest negative float, and nothing becomes NaN by it.
    float2 pair = make_float2(-1e30f, 0.0f);
    for (int i = threadIdx.x; i < cols; i += THREADS) {
        float larger = fmaxf(pair.x, row[i]);
        pair.y = pair.y * expf(pair.x - larger) + expf(row[i] - larger);
        pair.x = larger;
    }
    pair = block_merge(pair);

    for (int i = threadIdx.x; i < cols; i += THREADS) out[i] = expf(row[i] - pair.x) / pair.y;
}
