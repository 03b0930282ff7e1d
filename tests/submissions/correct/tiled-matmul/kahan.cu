// gpulab: exercise=tiled-matmul
// gpulab: block=8,8,4 grid=ceil(n/8),ceil(m/8)
// Kahan's sum; the four layers of a block share the terms and meet in shared memory.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float ta[32][9], tb[32][9], met[4][8][8];
    int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z, row = blockIdx.y * 8 + y, col = blockIdx.x * 8 + x;
    float sum = 0, lost = 0;
    for (int t = 0; t < k; t += 32) {
        int s = t + z * 8;
        ta[z * 8 + x][y] = row < m && s + x < k ? a[(size_t)row * k + s + x] : 0.0f;
        tb[z * 8 + y][x] = col < n && s + y < k ? b[(size_t)(s + y) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 8; ++i) {
            float p = __fsub_rn(__fmul_rn(ta[z * 8 + i][y], tb[z * 8 + i][x]), lost), next = __fadd_rn(sum, p);
            lost = isfinite(next) ? __fsub_rn(__fsub_rn(next, sum), p) : 0.0f;  // of infinity nothing is lost
            sum = next;
        }
        __syncthreads();
    }
    met[z][y][x] = sum - lost;
    __syncthreads();
    if (z == 0 && row < m && col < n) c[(size_t)row * n + col] = (met[0][y][x] + met[1][y][x]) + (met[2][y][x] + met[3][y][x]);
}
