// Reads a window of a huge row-major matrix of which only the window is in memory.
extern "C" __global__ void index_overflow(
    const float* window, float* y, int first_row, int pitch, long long origin)
{
    const int row = first_row + blockIdx.x, col = threadIdx.x;
    const long long index = static_cast<long long>(row) * pitch + col;
    y[blockIdx.x * blockDim.x + col] = window[index - origin];
}
