// Square roots of magnitudes.
extern "C" __global__ void assert_fails(const float* x, float* y)
{
    const float v = fabsf(x[threadIdx.x]);
    assert(v >= 0.0f);
    y[threadIdx.x] = sqrtf(v);
}
