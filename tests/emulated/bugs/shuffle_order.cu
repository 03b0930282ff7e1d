// Neighbours exchange a value through shared memory, trusting that a shuffle, at which they wait
// for each other, orders their memory accesses too. It does not.
extern "C" __global__ void shuffle_order(const float* x, float* y)
{
    __shared__ float tile[32];
    const int lane = threadIdx.x;
    tile[lane] = x[lane];  // BUG: race
    const float other = __shfl_xor_sync(0xffffffffu, x[lane], 1);
    y[lane] = tile[lane ^ 1] - other;  // BUG: race
}
