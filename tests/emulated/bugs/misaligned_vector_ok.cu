// Sums four neighbours at a time.
extern "C" __global__ void misaligned_vector(const float* x, float* y)
{
    const int i = threadIdx.x;
    const float4 v = *reinterpret_cast<const float4*>(x + 4 * i);
    y[i] = (v.x + v.y) + (v.z + v.w);
}
