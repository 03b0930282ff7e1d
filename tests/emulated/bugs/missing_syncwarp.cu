// A warp's sum in shared memory, halving the distance in each step,
// trusting that the lanes run in step.
extern "C" __global__ void missing_syncwarp(const float* x, float* y)
{
    __shared__ float part[2][64];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = x[threadIdx.x];
    for (int distance = 16; distance > 0; distance /= 2) {
        part[warp][lane] = sum;  // BUG: race
        asm volatile("" ::: "memory");  // orders the compiler, not the lanes
        if (lane < distance) {
            sum += part[warp][lane + distance];  // BUG: race
        }
        asm volatile("" ::: "memory");
    }
    if (lane == 0) {
        y[warp] = sum;
    }
}
