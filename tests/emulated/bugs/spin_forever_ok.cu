// Waits for a flag that is up.
extern "C" __global__ void spin_forever(const volatile int* flag, int* y)
{
    while (flag[1] == 0) {
    }
    y[threadIdx.x] = flag[1];
}
