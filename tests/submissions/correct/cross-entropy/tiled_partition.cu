// gpulab: exercise=cross-entropy
// gpulab: block=32,4 grid=ceil(rows/4)
#include <cuda_fp16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void cross_entropy(const __half* x, const int* labels, float* loss, float* lse, int rows, int cols, int ignore_index) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int row = blockIdx.x * 4 + threadIdx.y;
    if (row >= rows) return;
    const __half* p = x + (size_t)row * cols;
    float top = -FLT_MAX, sum = 0;
    for (int i = warp.thread_rank(); i < cols; i += 32) top = fmaxf(top, __half2float(p[i]));
    top = cg::reduce(warp, top, cg::greater<float>());
    for (int i = warp.thread_rank(); i < cols; i += 32) sum += expf(__half2float(p[i]) - top);
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) {
        int l = labels[row];
        float log_sum = logf(sum);
        lse[row] = top + log_sum;
        loss[row] = l == ignore_index ? 0.0f : (unsigned)l >= (unsigned)cols ? NAN : (top - __half2float(p[l])) + log_sum;
    }
}
