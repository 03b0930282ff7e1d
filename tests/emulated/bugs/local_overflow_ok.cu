// Keeps a history in an array of its own and writes inside it.
extern "C" __global__ void local_overflow(const float* x, float* y, const int* where)
{
    float history[96];
    for (int k = 0; k < 96; ++k) {
        history[k] = x[96 * threadIdx.x + k];
    }
    history[where[threadIdx.x] * 3] = -1.0f;
    float sum = 0.0f;
    for (int k = 0; k < 32; ++k) {
        sum += history[where[k] * 3];
    }
    y[threadIdx.x] = sum;
}
