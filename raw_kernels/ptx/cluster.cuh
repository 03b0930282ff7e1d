// Blocks of one cluster: their rank, a store into another block's shared memory, and the barrier.
// Source: PTX ISA, "mapa", "st" (.shared::cluster), "barrier.cluster", special registers. From
// sm_90.
#pragma once

#include "ptx/shared.cuh"

namespace ptx {

// This block's rank in its cluster.
inline unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Stores 4 bytes at the place that `here` has in the shared memory of the block of rank `to`.
inline void store_cluster(unsigned here, unsigned to, unsigned word) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(to));
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(word) : "memory");
}

// Every thread of every block arrives once and waits once.
inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

}  // namespace ptx
