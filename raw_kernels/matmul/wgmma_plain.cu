// C (m, n) = A (m, k) B (k, n) by wgmma fed by TMA, and by nothing else: the first step from mma.sync to wgmma.cu.
//
// The idea: no thread copies. One thread asks TMA for slabs of A and B, which land, swizzled, in a ring of stages;
// warpgroups multiply them where they lie. All warps go in step: a stage is asked for again behind a barrier of the
// whole block, so that loads run ahead by the other stages, and multiplications wait for each other.
//
// Source: PTX ISA, "wgmma", "Tensor copy".
#include "matmul/wgmma_store.cuh"

// Grid: one block a tile; block: T::kConsumers warpgroups; dynamic shared memory: T::kRingBytes + T::kBarriersBytes.
template <class T, class Store>
__global__ void __launch_bounds__(T::kConsumers * T::kWarpgroup, 1)
    matmul_wgmma_plain(const __grid_constant__ ptx::TensorMap a, const __grid_constant__ ptx::TensorMap b,
                       const __grid_constant__ typename Store::Target c, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned stages = ptx::shared_address(memory);
    Ring<T> ring(stages, stages + T::kRingBytes);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
    const int slabs = ceil_div(k, T::kSlab);
    const TileIndex at = grouped_tile<T::kBand>(blockIdx.x, ceil_div(m, T::kBlockM), ceil_div(n, T::kBlockN));
    const int row = at.row * T::kBlockM, column = at.column * T::kBlockN;

    if (threadIdx.x == 0) ring.initialise();
    __syncthreads();
    const bool asks = warp == 0 && ptx::elect_one();
    if (asks) {
        Ring<T> ahead = ring;
        for (int slab = 0; slab < slabs && slab < T::kStages; ++slab) {
            load_slab(ahead, a, b, row, column, slab, 0);
            ahead.advance();
        }
    }
    Sums<T> sums;
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab) {
        ptx::mbarrier_wait(ring.full(ring.slot), ring.phase);
        sums.multiply(ring.a() + group * T::kGroupM * T::kRowBytes, ring.b(), slab == 0);
        ptx::wgmma_wait<0>();
        __syncthreads();
        if (asks && slab + T::kStages < slabs) load_slab(ring, a, b, row, column, slab + T::kStages, 0);
        ring.advance();
    }
    sums.pin();
    unsigned turn = 0;
    Store::store(sums, c, 0, turn, group, row + group * T::kGroupM, column, m, n);
}
