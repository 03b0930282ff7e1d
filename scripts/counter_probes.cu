// One memory instruction each, to hold the counting rules against the profiler's.
// `step` and `pitch` come at run time, so that the compiler cannot fold the pattern.

extern "C" __global__ void load_step(const float* x, float* y, int n, int m, int step)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i * step];
}

extern "C" __global__ void store_step(const float* x, float* y, int n, int m, int step)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i * step] = x[i];
}

extern "C" __global__ void load_float4(const float* x, float* y, int n, int m, int step)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float4 v = reinterpret_cast<const float4*>(x)[i * step];
    y[i] = v.x + v.y + v.z + v.w;
}

extern "C" __global__ void load_float2(const float* x, float* y, int n, int m, int step)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float2 v = reinterpret_cast<const float2*>(x)[i * step];
    y[i] = v.x + v.y;
}

// A warp reads and writes a column of a shared array with `step` words between neighbours.
extern "C" __global__ void shared_step(const float* x, float* y, int n, int m, int step)
{
    __shared__ float tile[32 * 33];
    const int t = threadIdx.x;
    tile[t * step] = x[t];
    __syncthreads();
    y[t] = tile[(31 - t) * step];
}

extern "C" __global__ void shared_float2(const float* x, float* y, int n, int m, int step)
{
    __shared__ float2 tile[32 * 16];
    const int t = threadIdx.x;
    tile[t * step] = make_float2(x[t], x[t] + 1.0f);
    __syncthreads();
    const float2 v = tile[(31 - t) * step];
    y[t] = v.x - v.y;
}

extern "C" __global__ void shared_float4(const float* x, float* y, int n, int m, int step)
{
    __shared__ float4 tile[32 * 8];
    const int t = threadIdx.x;
    const float v = x[t];
    tile[t * step] = make_float4(v, v + 1.0f, v + 2.0f, v + 3.0f);
    __syncthreads();
    const float4 w = tile[(31 - t) * step];
    y[t] = (w.x - w.y) * (w.z - w.w);
}

// Halves of a word: two lanes a word, then two words a bank.
extern "C" __global__ void shared_half(const float* x, float* y, int n, int m, int step)
{
    __shared__ unsigned short tile[32 * 64];
    const int t = threadIdx.x;
    tile[t * step] = static_cast<unsigned short>(t);
    __syncthreads();
    y[t] = tile[(31 - t) * step] + x[t];
}

// Four 8x8 matrices of halves whose rows lie `step` bytes apart.
extern "C" __global__ void matrix_rows(const float* x, float* y, int n, int m, int step)
{
    __shared__ __align__(16) unsigned char tile[32 * 144];
    const int t = threadIdx.x;
    for (int k = t; k < 32 * 144; k += 32) {
        tile[k] = static_cast<unsigned char>(k);
    }
    __syncthreads();
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(tile)) + t * step;
    unsigned a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(at)
                 : "memory");
    y[t] = x[t] + static_cast<float>(a ^ b ^ c ^ d);
}

// A warp copies 512 bytes to shared memory asynchronously, `step` float4 apart there.
extern "C" __global__ void async_copy(const float* x, float* y, int n, int m, int step)
{
    __shared__ float4 tile[32 * 8];
    const int t = threadIdx.x;
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile + t * step));
    const float* from = x + 4 * t;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    y[t] = tile[(31 - t) * step].x;
}

// A warp copies four rows of 8 pieces, 13 pieces apart in global memory and swizzled in shared
// memory; of each row the first `step` pieces are read, the others filled with zeros.
extern "C" __global__ void async_rows(const float* x, float* y, int n, int m, int step)
{
    __shared__ float4 tile[32];
    const int t = threadIdx.x, row = t / 8, piece = t % 8;
    const unsigned to =
        static_cast<unsigned>(__cvta_generic_to_shared(tile + 8 * row + (piece ^ row)));
    const float* from = x + 4 * (13 * row + piece);
    const int bytes = piece < step ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    y[t] = tile[31 - t].x;
}
