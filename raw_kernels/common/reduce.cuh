// Reductions over the threads that share a row: lanes of a warp, warps of a block, blocks of a
// cluster. All threads end with the same bits: partial results meet in an order that depends on
// their places only, the lower place being the left operand.
//
// A result is any struct of 4-byte members; an operation is a function object over two of them.
// Sync is left out after a use: each reduction of a kernel names a kSlot of its own, and a slot is
// used once for each row (a row is a launch's only work for its block).
#pragma once

#include "ptx/cluster.cuh"

#ifdef GPULAB_CLUSTER
#define GPULAB_CLUSTER_DIMS __cluster_dims__(GPULAB_CLUSTER, 1, 1)
constexpr int kCluster = GPULAB_CLUSTER;
#else
#define GPULAB_CLUSTER_DIMS
constexpr int kCluster = 1;
#endif

inline float infinity() { return __uint_as_float(0x7f800000u); }
inline float not_a_number() { return __uint_as_float(0x7fffffffu); }

struct Add {
    float operator()(float a, float b) const { return a + b; }
};

struct Larger {
    float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The value of the lane whose number differs in the bits of `mask`.
template <typename V>
V from_lane_xor(V mine, int mask) {
    static_assert(sizeof(V) % 4 == 0, "4-byte members");
    V other;
#pragma unroll
    for (int i = 0; i < int(sizeof(V) / 4); ++i) {
        reinterpret_cast<unsigned*>(&other)[i] =
            __shfl_xor_sync(0xffffffffu, reinterpret_cast<const unsigned*>(&mine)[i], mask);
    }
    return other;
}

// Over each aligned group of kLanes lanes; the whole warp calls it.
template <int kLanes, typename V, typename Op>
V warp_reduce(V value, Op op) {
    static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a power of two");
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) {
        const V other = from_lane_xor(value, mask);
        value = threadIdx.x & mask ? op(other, value) : op(value, other);
    }
    return value;
}

// Over the kWarps warps of the block, one value a warp.
template <int kWarps, int kSlot, typename V, typename Op>
V block_reduce(V value, Op op) {
    static_assert(kWarps <= 32 && (kWarps & (kWarps - 1)) == 0, "a power of two");
    __shared__ V part[kWarps];
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_reduce<kWarps>(part[threadIdx.x % kWarps], op);
}

// A cluster's blocks must all run before one writes into another's shared memory: arrive when the
// kernel starts, wait before the first reduction.
inline void cluster_begin() {
    if (kCluster > 1) ptx::cluster_arrive();
}

inline void cluster_ready() {
    if (kCluster > 1) ptx::cluster_wait();
}

// Over the blocks of the cluster, one value a block. Every block hands its value to all.
template <int kSlot, typename V, typename Op>
V cluster_reduce(V value, Op op) {
    __shared__ V part[kCluster];
    if (threadIdx.x < kCluster) {
        const unsigned here = ptx::shared_address(&part[ptx::cluster_rank()]);
#pragma unroll
        for (int i = 0; i < int(sizeof(V) / 4); ++i) {
            ptx::store_cluster(here + 4 * i, threadIdx.x,
                               reinterpret_cast<const unsigned*>(&value)[i]);
        }
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    V total = part[0];
#pragma unroll
    for (int i = 1; i < kCluster; ++i) total = op(total, part[i]);
    return total;
}

// Over a row's threads: kGroup of this block (and as many of the other blocks of the cluster).
template <int kGroup, int kSlot, typename V, typename Op>
V row_reduce(V value, Op op) {
    value = warp_reduce<(kGroup < 32 ? kGroup : 32)>(value, op);
    if constexpr (kGroup > 32) value = block_reduce<kGroup / 32, kSlot>(value, op);
    if constexpr (kCluster > 1) value = cluster_reduce<kSlot>(value, op);
    return value;
}

// Whether any of the rows that share a warp (or this one row) is concerned; uniform where needed
// so that all may take part in another reduction. `mine` is the same in all threads of a row.
template <int kGroup>
bool any_row(bool mine) {
    if constexpr (kGroup < 32) return __any_sync(0xffffffffu, mine);
    return mine;
}
