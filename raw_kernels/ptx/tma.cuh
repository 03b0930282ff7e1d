// Copies of boxes of a matrix between global and shared memory, made by the tensor memory accelerator (TMA).
//
// One thread starts a copy. A tensor map, encoded by the host, holds address, shape, row pitch, box and
// swizzle. A load counts its bytes at an mbarrier; elements outside the matrix arrive as zeros and count too. A
// store leaves out what lies outside the matrix. Coordinates are elements: x along the rows, then y.
//
// Source: PTX ISA, "cp.async.bulk.tensor", "cp.async.bulk.commit_group / wait_group", "fence.proxy.async",
// "prefetch.tensormap". From sm_90.
#pragma once

namespace ptx {

// What cuTensorMapEncodeTiled writes; a kernel takes it as a `const __grid_constant__` parameter.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

// True in one lane of the converged warp. The compiler then knows that what follows runs once: a copy would
// otherwise be put into a loop over the lanes. PTX ISA, "elect.sync".
inline bool elect_one() {
    unsigned elected;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "elect.sync _|p, 0xffffffff;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(elected));
    return elected != 0;
}

inline unsigned long long map_address(const TensorMap& map) { return reinterpret_cast<unsigned long long>(&map); }

inline void tma_prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map_address(map)) : "memory");
}

// Into this block's shared memory.
inline void tma_load(unsigned shared, const TensorMap& map, int x, int y, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared),
        "l"(map_address(map)), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

// Into the same place of every block of the cluster whose bit is set in `blocks`; each one's own barrier at the
// place of `barrier` counts the bytes.
inline void tma_load_multicast(unsigned shared, const TensorMap& map, int x, int y, unsigned barrier,
                               unsigned short blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
        "l"(map_address(map)), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
        : "memory");
}

inline void tma_store(const TensorMap& map, int x, int y, unsigned shared) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map_address(map)),
                 "r"(x), "r"(y), "r"(shared)
                 : "memory");
}

// Closes the group of all stores that this thread started since the last commit.
inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's newest groups have yet to read shared memory.
template <int kPending>
inline void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// What this thread wrote to shared memory becomes visible to asynchronous copies started after it.
inline void fence_shared_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace ptx
