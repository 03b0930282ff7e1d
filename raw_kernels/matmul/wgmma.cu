// C (m, n) = A (m, k) B (k, n), all row-major, on Hopper's warpgroup tensor cores: wgmma fed by TMA. float32 sums.
//
// The idea: nobody waits for memory. A block owns a tile of C; one thread of a producer warpgroup asks TMA for slabs
// of A and B, which land, swizzled, in a ring of stages in shared memory; consumer warpgroups multiply them where
// they lie, with all registers the producer gave up. Two mbarriers a stage, full and empty, are the only
// synchronisation. The two blocks of a cluster share one operand: each loads half and TMA writes it to both. Blocks
// are persistent: while the consumers store a tile through shared memory by TMA, the ring fills for the next.
//
// Sums run over k in ascending order, one accumulator an element. TMA fills with zeros beyond the edges and leaves
// out what a store has beyond them, so any m, n, k are right whose rows are multiples of 16 bytes.
//
// Source: PTX ISA, "wgmma", "Tensor copy"; CUTLASS, "Efficient GEMM in CUDA" (warp specialisation, persistent tiles).
#include "matmul/wgmma_promote.cuh"
#include "matmul/wgmma_store.cuh"

// Grid: any multiple of T::kCluster; block: T::kThreads;
// dynamic shared memory: T::kRingBytes + Store::kBytes + T::kBarriersBytes.
// Accumulate: Sums<T>, the tensor core's own accumulator, or Promoted<T, columns>.
template <class T, class Store, class Accumulate = Sums<T>>
__global__ void __cluster_dims__(T::kCluster, 1, 1) __launch_bounds__(T::kThreads, 1)
    matmul_wgmma(const __grid_constant__ ptx::TensorMap a, const __grid_constant__ ptx::TensorMap b,
                 const __grid_constant__ typename Store::Target c, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned stages = ptx::shared_address(memory), staging = stages + T::kRingBytes;
    Ring<T> ring(stages, staging + Store::kBytes);
    const unsigned lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
    const int slabs = ceil_div(k, T::kSlab);

    if (threadIdx.x == 0) ring.initialise();
    if constexpr (T::kCluster > 1) {
        ptx::cluster_arrive();
        ptx::cluster_wait();
    } else {
        __syncthreads();
    }
    Schedule<T> schedule(m, n, T::kCluster > 1 ? ptx::cluster_rank() : 0);

    if (group == T::kConsumers) {
        if constexpr (T::kConsumers == 2) ptx::registers_decrease<24>();
        if (warp == T::kConsumers * 4 && ptx::elect_one()) {
            ptx::tma_prefetch(a);
            ptx::tma_prefetch(b);
            produce(ring, schedule, a, b, slabs);
        }
    } else {
        if constexpr (T::kConsumers == 2) ptx::registers_increase<240>();
        Accumulate sums;
        unsigned turn = 0;
        int row, column;
        while (schedule.take(row, column)) {
            consume(ring, sums, group, lane, slabs);
            Store::store(sums, c, staging, turn, group, row + group * T::kGroupM, column, m, n);
        }
        Store::finish();
    }
    if constexpr (T::kCluster > 1) {  // nobody leaves while the other block's loads and arrivals may come
        __syncwarp();
        ptx::cluster_arrive();
        ptx::cluster_wait();
    }
}
