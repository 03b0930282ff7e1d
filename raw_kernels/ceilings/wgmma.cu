// How fast the tensor cores take wgmma m64n256: operands lie in shared memory, sums in registers, nothing else is
// done.
//
// The idea is that of ceilings/mma.cu: each warpgroup adds A B1 and A B2 `pairs` times to its 64 x 256 sums, and
// A B1 once more; A B1 + A B2 = 1 in every element, so that the sums end as pairs + A B1. Operands are 128 bytes of
// k wide, four instructions, and lie in shared memory as TMA's 128-byte swizzle would put them: the 16-byte pieces
// of row r change places by the low three bits of r. Both warpgroups of a block read the same operands.
// Products in total: warpgroups * (2 pairs + 1) * 64 * 256 * k, with k = 128 bytes of the operand.
//
// A is (64, k) row-major; B1 and B2 are (256, k): columns of B in rows. sums is (warpgroups, 64, 256).
// Grid: any; block: 256 threads; dynamic shared memory: kBytes.
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions". sm_90a only.
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

constexpr int kGroups = 2, kThreads = kGroups * 128;
constexpr int kRows = 64, kColumns = 256, kRowBytes = 128, kPieces = kRowBytes / 16;
constexpr int kABytes = kRows * kRowBytes, kBBytes = kColumns * kRowBytes;

// Copies whole rows of 128 bytes and swizzles them.
inline void bring(unsigned to, const uint4* from, int rows) {
    for (int at = threadIdx.x; at < rows * kPieces; at += kThreads) {
        const int row = at / kPieces, piece = at % kPieces;
        ptx::store_shared_16(to + row * kRowBytes + (piece ^ row % 8) * 16, from[at]);
    }
}

template <class Operand, class Sum>
void add(Sum (&sums)[kColumns / 2], unsigned long long a, unsigned long long b) {
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Operand, kColumns, false>::multiply(sums, a + step * 2, b + step * 2, 1);
    }
    ptx::wgmma_commit();
}

template <class Operand, class Sum>
__global__ void __launch_bounds__(kThreads, 1)
    ceiling_wgmma(const uint4* a, const uint4* b1, const uint4* b2, Sum* sums, int pairs) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned to_a = ptx::shared_address(memory), to_b1 = to_a + kABytes, to_b2 = to_b1 + kBBytes;
    bring(to_a, a, kRows);
    bring(to_b1, b1, kColumns);
    bring(to_b2, b2, kColumns);
    ptx::fence_shared_async();
    __syncthreads();
    const auto of_a = ptx::matrix_descriptor(to_a, 16, 8 * kRowBytes);
    const auto first = ptx::matrix_descriptor(to_b1, 16, 8 * kRowBytes);
    const auto second = ptx::matrix_descriptor(to_b2, 16, 8 * kRowBytes);

    Sum mine[kColumns / 2] = {};
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair) {
        add<Operand>(mine, of_a, first);
        add<Operand>(mine, of_a, second);
        ptx::wgmma_wait<1>();
    }
    add<Operand>(mine, of_a, first);
    ptx::wgmma_wait<0>();
    ptx::pin(mine);

    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
    const long long group = static_cast<long long>(blockIdx.x) * kGroups + threadIdx.x / 128;
    Sum* tile = sums + group * kRows * kColumns;
#pragma unroll
    for (int at = 0; at < kColumns / 2; ++at) {
        const int row = 16 * warp + g + at / 2 % 2 * 8, column = at / 4 * 8 + 2 * t + at % 2;
        tile[row * kColumns + column] = mine[at];
    }
}
