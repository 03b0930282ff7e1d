// Waits for a flag that nobody raises.
extern "C" __global__ void spin_forever(const volatile int* flag, int* y)
{
    while (flag[0] == 0) {  // BUG: timeout
    }
    y[threadIdx.x] = flag[0];
}
