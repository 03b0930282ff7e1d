// Square roots that assert what does not hold.
extern "C" __global__ void assert_fails(const float* x, float* y)
{
    const float v = x[threadIdx.x];
    assert(v >= 0.0f);  // BUG: trap
    y[threadIdx.x] = sqrtf(v);
}
