// Asynchronous copies from global to shared memory (cp.async): one function an instruction, no
// policy.
//
// The three copy functions take the number of bytes to read; what is left of the 16, 8 or 4 bytes
// in shared memory is filled with zeros, and with 0 bytes global memory is not touched at all. A
// thread sees its own copies after wait_group, the other threads of the block after a barrier that
// follows it.
//
// Source: PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group". From sm_80.
#pragma once

namespace ptx {

// 16 bytes past L1 (.cg): the tile is read once by this SM.
inline void cp_async_16(unsigned shared, const void* global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}

// 8 bytes; only .ca exists below 16.
inline void cp_async_8(unsigned shared, const void* global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}

// 4 bytes, the smallest asynchronous copy there is.
inline void cp_async_4(unsigned shared, const void* global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}

// Closes the group of all copies that this thread issued since the last commit (it may be empty).
inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's newest groups are unfinished.
template <int kPending>
inline void cp_async_wait() {
    static_assert(kPending >= 0, "a number of groups");
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace ptx
