// One warp fills a tile, the other reads it; an mbarrier stands between them,
// but the reader does not wait for it.
extern "C" __global__ void mbarrier_no_wait(const float* x, float* y)
{
    __shared__ __align__(8) unsigned long long filled;
    __shared__ float tile[32];
    const int lane = threadIdx.x % 32;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&filled));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(at) : "memory");
    }
    if (threadIdx.x < 32) {
        tile[lane] = 0.0f;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        tile[lane] = x[lane];  // BUG: race
        unsigned long long state;
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
    } else {
        y[lane] = tile[31 - lane];  // BUG: race
    }
}
