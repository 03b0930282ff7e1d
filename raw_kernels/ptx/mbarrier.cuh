// The barrier of asynchronous copies: an object of 8 bytes in shared memory that counts arrivals and bytes.
//
// A phase completes when the expected arrivals have come and every byte announced by `expect` has landed; then
// the next phase begins. A waiter names the parity of the phase it waits for: of a fresh barrier, phase 0 is
// open and a wait for parity 1 returns at once.
//
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". From sm_90.
#pragma once

namespace ptx {

constexpr unsigned kBarrierBytes = 8;

inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Initialised barriers become visible to the other blocks of the cluster and to asynchronous copies.
inline void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

// Arrives, and announces `bytes` that asynchronous copies will bring in this phase.
inline void mbarrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

inline void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier which the block of rank `rank` of the cluster has at the same place.
inline void mbarrier_arrive_cluster(unsigned barrier, unsigned rank) {
    asm volatile(
        "{\n\t.reg .b32 there;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

inline void mbarrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "AGAIN:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@done bra READY;\n\t"
        "bra AGAIN;\n\t"
        "READY:\n\t}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

}  // namespace ptx
