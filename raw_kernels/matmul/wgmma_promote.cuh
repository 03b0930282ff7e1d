// fp8 sums promoted to float32: the tensor core's own accumulator keeps 13 fraction bits of an fp8 product, so each
// slab of 128 terms is summed from zero and added, rounded, to a float32 sum on the CUDA cores.
//
// While one warpgroup adds, the tensor cores multiply for the other: nobody waits for the additions. A part of the
// tile, kPart columns wide, is in the tensor core's hands at a time, which leaves registers for both sums.
#pragma once

#include "matmul/wgmma_tile.cuh"

template <class T, int kPart>
struct Promoted : Sums<T> {
    static_assert(T::kSize == 1, "a slab is the 128 terms after which is promoted");
    using Instruction = ptx::Wgmma<typename T::Operand, kPart, false>;
    static constexpr int kParts = T::kBlockN / kPart;
    static_assert(kParts * kPart == T::kBlockN, "whole parts");

    void clear() {
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i) {
#pragma unroll
            for (int j = 0; j < T::kBlockN / 2; ++j) this->of[i][j] = 0.0f;
        }
    }

    // One slab of one part: 64 rows from `a`, kPart columns from `b`; `read` when shared memory is no longer needed.
    template <class Read>
    static void add(float* sums, unsigned a, unsigned b, Read read) {
        const auto of_a = ptx::matrix_descriptor(a, 16, 8 * T::kRowBytes);
        const auto of_b = ptx::matrix_descriptor(b, 16, 8 * T::kRowBytes);
        float part[kPart / 2];
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < T::kSteps; ++step) {
            Instruction::multiply(part, of_a + step * 32 / 16, of_b + step * 32 / 16, step > 0);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::pin(part);
        read();
#pragma unroll
        for (int j = 0; j < kPart / 2; ++j) sums[j] += part[j];
    }
};

// Multiplies all slabs of a tile.
template <class T, int kPart>
void consume(Ring<T>& ring, Promoted<T, kPart>& sums, int group, unsigned lane, int slabs) {
    constexpr int kParts = Promoted<T, kPart>::kParts;
    const unsigned rows = group * T::kGroupM * T::kRowBytes;
    sums.clear();
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab) {
        ptx::mbarrier_wait(ring.full(ring.slot), ring.phase);
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i) {
#pragma unroll
            for (int p = 0; p < kParts; ++p) {
                const bool last = i == T::kMTiles - 1 && p == kParts - 1;
                sums.add(sums.of[i] + p * kPart / 2, ring.a() + rows + i * 64 * T::kRowBytes,
                         ring.b() + p * kPart * T::kRowBytes, [&] {
                             if (last) ring.release(ring.slot, lane);
                         });
            }
        }
        ring.advance();
    }
}
