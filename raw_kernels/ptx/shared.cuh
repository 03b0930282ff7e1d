// Shared memory by its 32-bit address, 4, 8 or 16 bytes at a time.
// Source: PTX ISA, "ld", "st", "cvta".
#pragma once

namespace ptx {

// The 32-bit address that shared-memory instructions take.
inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The address is a multiple of 4 bytes.
inline unsigned load_shared_4(unsigned shared) {
    unsigned word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared) : "memory");
    return word;
}

// The address is a multiple of 16 bytes.
inline uint4 load_shared_16(unsigned shared) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(shared)
                 : "memory");
    return words;
}

// The same, of places that were read before: the assembler may not keep in registers what was found there.
inline uint4 load_shared_again_16(unsigned shared) {
    uint4 words;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(shared)
                 : "memory");
    return words;
}

inline void store_shared_4(unsigned shared, unsigned word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}

// The address is a multiple of 8 bytes.
inline void store_shared_8(unsigned shared, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(first), "f"(second)
                 : "memory");
}

inline void store_shared_16(unsigned shared, uint4 words) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words.x),
                 "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}

}  // namespace ptx
