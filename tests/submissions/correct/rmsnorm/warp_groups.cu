// gpulab: exercise=rmsnorm
// gpulab: block=256 grid=rows
//
// Sums of a warp by cooperative_groups::reduce.
#include <cuda_fp16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int rows, int cols, float eps) {
    __shared__ float part[8];
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    int row = blockIdx.x;
    float s = 0;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) { float v = __half2float(x[(size_t)row * cols + i]); s += v * v; }
    s = cg::reduce(warp, s, cg::plus<float>());
    if (warp.thread_rank() == 0) part[warp.meta_group_rank()] = s;
    block.sync();
    float t = 0;
    for (int i = 0; i < 8; ++i) t += part[i];
    float rstd = rsqrtf(t / cols + eps);
    for (int i = threadIdx.x; i < cols; i += blockDim.x)
        y[(size_t)row * cols + i] = __float2half(__half2float(__float2half(__half2float(x[(size_t)row * cols + i]) * rstd)) * __half2float(weight[i]));
}
