// Reverses 256 floats, brought to shared memory by asynchronous copies that nobody waits for.
extern "C" __global__ void copy_no_wait(const float* x, float* y)
{
    __shared__ __align__(16) float tile[256];
    const int t = threadIdx.x;
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&tile[4 * t]));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + 4 * t) : "memory");  // BUG: race
    asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    for (int k = 0; k < 4; ++k) {
        y[4 * t + k] = tile[255 - (4 * t + k)];  // BUG: async_in_flight race
    }
}
