// How a warpgroup's sums reach C: straight from registers, or through shared memory by TMA.
#pragma once

#include "matmul/wgmma_tile.cuh"

// Two neighbouring sums, rounded to nearest, as one word: the first in the low half.
template <class Output>
unsigned narrow_pair(float first, float second);

template <>
inline unsigned narrow_pair<ptx::bf16>(float first, float second) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

template <>
inline unsigned narrow_pair<ptx::f16>(float first, float second) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

struct f32 { using Storage = float; };

// A barrier of one consumer warpgroup; 0 is the whole block's.
inline void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// Each lane writes its pairs of columns; n is even.
template <class Output>
struct StoreRegisters {
    using Target = typename Output::Storage*;
    static constexpr int kBytes = 0;

    template <class T>
    static void store(const Sums<T>& sums, Target c, unsigned, unsigned&, int group, int row, int column, int m, int n) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (int i = 0; i < T::kMTiles * 2; ++i) {  // halves of m-tiles
            const int r = row + i / 2 * 64 + warp * 16 + i % 2 * 8 + lane / 4;
            if (r >= m) continue;
            Target const to = c + static_cast<long long>(r) * n;
#pragma unroll
            for (int j = 0; j < T::kBlockN / 8; ++j) {
                const int first = column + j * 8 + lane % 4 * 2;
                if (first >= n) continue;
                const float x = sums.of[i / 2][j * 4 + i % 2 * 2], y = sums.of[i / 2][j * 4 + i % 2 * 2 + 1];
                if constexpr (sizeof(typename Output::Storage) == 4) {
                    *reinterpret_cast<float2*>(to + first) = make_float2(x, y);
                } else {
                    *reinterpret_cast<unsigned*>(to + first) = narrow_pair<Output>(x, y);
                }
            }
        }
    }

    static void finish() {}
};

// Boxes of 64 rows x 128 bytes are laid out in shared memory, swizzled as TMA expects, and leave asynchronously:
// a warpgroup waits only for a buffer that is still being read, kBuffers boxes later.
template <class Output, int kGroups, int kBuffers>
struct StoreTma {
    using Target = ptx::TensorMap;
    static constexpr int kBoxBytes = 64 * 128;
    static constexpr int kBytes = kGroups * kBuffers * kBoxBytes;
    static constexpr int kColumns = 128 / sizeof(typename Output::Storage);  // of a box

    template <class T>
    static void store(const Sums<T>& sums, const Target& c, unsigned staging, unsigned& turn, int group, int row, int column,
                      int m, int n) {
        const bool leader = threadIdx.x % T::kWarpgroup == 0;
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i) {
#pragma unroll
            for (int box = 0; box < T::kBlockN / kColumns; ++box) {
                const unsigned buffer = staging + (group * kBuffers + turn) * kBoxBytes;
                turn = turn + 1 == kBuffers ? 0 : turn + 1;
                if (leader) ptx::tma_store_wait_read<kBuffers - 1>();
                group_sync(group);
                write(sums.of[i] + box * kColumns / 2, buffer);
                ptx::fence_shared_async();
                group_sync(group);
                if (leader) {
                    ptx::tma_store(c, column + box * kColumns, row + i * 64, buffer);
                    ptx::tma_store_commit();
                }
            }
        }
    }

    // Sixteen bytes `chunk` of row r of a box lie at chunk ^ r % 8.
    static void write(const float* sums, unsigned buffer) {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        if constexpr (sizeof(typename Output::Storage) == 2) {
            const unsigned r = warp * 16 + lane % 16;
            const unsigned at = buffer + r * 128 + ((lane / 16 ^ r % 8) << 4);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float* const s = sums + j * 8;
                const unsigned words[4] = {narrow_pair<Output>(s[0], s[1]), narrow_pair<Output>(s[2], s[3]),
                                           narrow_pair<Output>(s[4], s[5]), narrow_pair<Output>(s[6], s[7])};
                ptx::stmatrix_x4(at ^ j * 32, words);
            }
        } else {
            // Lanes of odd rows take the n-tiles in another order, so that 16 lanes meet no bank twice.
            const unsigned g = lane / 4, t = lane % 4;
            const bool odd = g % 2;
            const unsigned at = buffer + (warp * 16 + g) * 128 + ((t / 2 ^ g ^ (odd ? 4 : 0)) << 4) + t % 2 * 8;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float* const even_s = sums + j * 4;
                const float* const odd_s = sums + (j ^ 2) * 4;
                const unsigned to = at ^ j * 32;
                ptx::store_shared_8(to, odd ? odd_s[0] : even_s[0], odd ? odd_s[1] : even_s[1]);
                ptx::store_shared_8(to + 8 * 128, odd ? odd_s[2] : even_s[2], odd ? odd_s[3] : even_s[3]);
            }
        }
    }

    // Shared memory is read before the block ends.
    static void finish() { ptx::tma_store_wait_read<0>(); }
};
