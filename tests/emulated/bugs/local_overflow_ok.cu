// Keeps a small history in an array of its own.
extern "C" __global__ void local_overflow(const float* x, float* y, const int* where)
{
    float history[8];
    for (int k = 0; k < 8; ++k) {
        history[k] = x[8 * threadIdx.x + k];
    }
    history[where[threadIdx.x] % 8] = -1.0f;
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) {
        sum += history[where[k] % 8];
    }
    y[threadIdx.x] = sum;
}
