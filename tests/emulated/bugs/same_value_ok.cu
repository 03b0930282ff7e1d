// Every thread that finds something raises the same flag: whoever comes last, it is up.
extern "C" __global__ void same_value(const float* x, int* y)
{
    __shared__ int found;
    if (threadIdx.x == 0) {
        found = 0;
    }
    __syncthreads();
    if (x[threadIdx.x] > 2.0f) {
        found = 1;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *y = found;
    }
}
