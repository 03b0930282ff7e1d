// Square roots that give up at the first negative number.
extern "C" __global__ void trap_on_negative(const float* x, float* y)
{
    const float v = x[threadIdx.x];
    if (v < 0.0f) {
        __trap();  // BUG: trap
    }
    y[threadIdx.x] = sqrtf(v);
}
