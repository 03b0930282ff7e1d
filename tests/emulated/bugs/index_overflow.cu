// Reads a window of a huge row-major matrix of which only the window is in memory,
// with an index that needs more than 31 bits.
extern "C" __global__ void index_overflow(
    const float* window, float* y, int first_row, int pitch, long long origin)
{
    const int row = first_row + blockIdx.x, col = threadIdx.x;
    const int index = row * pitch + col;
    y[blockIdx.x * blockDim.x + col] = window[index - origin];  // BUG: out_of_bounds
}
