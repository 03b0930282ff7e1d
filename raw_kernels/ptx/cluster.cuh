// Blocks of one cluster: their rank, stores into another block's shared memory, and the barrier.
// Source: PTX ISA, "mapa", "st" (.shared::cluster), "st.async", "barrier.cluster", special registers.
// From sm_90.
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

// As store_cluster, asynchronously: the mbarrier at `barrier` of that block counts the bytes when they
// are there. Of 8 and 16 bytes the place is a multiple.
inline void send_cluster_4(unsigned here, unsigned to, unsigned barrier, unsigned word) {
    asm volatile(
        "{\n\t.reg .b32 there, counter;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mapa.shared::cluster.u32 counter, %2, %1;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [counter];\n\t}" ::"r"(here),
        "r"(to), "r"(barrier), "r"(word)
        : "memory");
}

inline void send_cluster_8(unsigned here, unsigned to, unsigned barrier, uint2 words) {
    asm volatile(
        "{\n\t.reg .b32 there, counter;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mapa.shared::cluster.u32 counter, %2, %1;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [there], {%3, %4}, [counter];\n\t}" ::"r"(here),
        "r"(to), "r"(barrier), "r"(words.x), "r"(words.y)
        : "memory");
}

inline void send_cluster_16(unsigned here, unsigned to, unsigned barrier, uint4 words) {
    asm volatile(
        "{\n\t.reg .b32 there, counter;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mapa.shared::cluster.u32 counter, %2, %1;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, %6}, [counter];\n\t}" ::"r"(here),
        "r"(to), "r"(barrier), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
        : "memory");
}

// As store_cluster, of a word and a number that tells it from what was there before.
inline void send_cluster_numbered(unsigned here, unsigned to, unsigned word, unsigned number) {
    asm volatile(
        "{\n\t.reg .b32 there;\n\t.reg .b64 both;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mov.b64 both, {%2, %3};\n\t"
        "st.relaxed.cluster.shared::cluster.b64 [there], both;\n\t}" ::"r"(here),
        "r"(to), "r"(word), "r"(number)
        : "memory");
}

// Waits until the word with this number has come.
inline unsigned receive_numbered(unsigned here, unsigned number) {
    unsigned word, found;
    do {
        asm volatile(
            "{\n\t.reg .b64 both;\n\t"
            "ld.relaxed.cluster.shared::cta.b64 both, [%2];\n\t"
            "mov.b64 {%0, %1}, both;\n\t}"
            : "=r"(word), "=r"(found)
            : "r"(here)
            : "memory");
    } while (found != number);
    return word;
}

// Every thread of every block arrives once and waits once.
inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

}  // namespace ptx
