// How attention/mma.cu brings rows of queries, keys and values to shared memory: the launch shape (Tile), a row
// there (Rows), and the copies (Copier).
#pragma once

#include "attention/half.cuh"
#include "common/unknown.cuh"
#include "ptx/async.cuh"
#include "ptx/shared.cuh"

// Chosen by capability and head dim on the host. kRowTiles: 16-row tiles a warp; kKeys: keys a stage; kGroup: heads
// taken together; kBlocks: blocks that an SM shall hold.
template <int kWarps_, int kRowTiles_, int kKeys_, int kStages_, int kGroup_, int kBlocks_, bool kAsync_>
struct Tile {
    static constexpr int kWarps = kWarps_, kRowTiles = kRowTiles_, kKeys = kKeys_, kStages = kStages_;
    static constexpr int kGroup = kGroup_, kBlocks = kBlocks_;
    static constexpr bool kAsync = kAsync_;
    static constexpr int kThreads = 32 * kWarps, kWarpRows = 16 * kRowTiles, kRows = kWarps * kWarpRows;
    static_assert(kKeys % 16 == 0, "the product with V takes 16 keys at a time");
    static_assert(kAsync ? kStages >= 2 : kStages == 2, "tiles through registers alternate");
};

// A row of kHeadDim 16-bit elements in global and in shared memory.
template <int kHeadDim>
struct Rows {
    static constexpr int kBytes = 2 * kHeadDim;                // global
    static constexpr int kSteps = (kHeadDim + 15) / 16;        // of 16 elements, zeros beyond kHeadDim
    static constexpr int kChunks = 2 * kSteps;                 // of 16 bytes
    static constexpr int kReal = (kHeadDim + 7) / 8;           // of them with elements of the row
    static constexpr int kPitch = 16 * (kChunks + 1);          // shared; an odd number of chunks
    static constexpr bool kVector = kHeadDim % 8 == 0;         // whole chunks, aligned in global memory
};

// One thread's share of the copies of kCount rows from global to shared memory, as chunks of 16 bytes in the order
// of global memory: chunk thread, thread + kThreads, ... of the kCount * kReal there are.
template <class T, int kHeadDim>
struct Copier {
    using Layout = Rows<kHeadDim>;
    static constexpr int kReal = Layout::kReal;
    static constexpr bool kRegular = T::kThreads % kReal == 0;  // a thread keeps to its column of chunks

    template <int kCount>
    static constexpr int copies() {
        return (kCount * kReal + T::kThreads - 1) / T::kThreads;
    }

    // Where copy i goes, in bytes from the tile's start.
    static int place(int thread, int i) {
        if constexpr (kRegular) {
            return thread / kReal * Layout::kPitch + thread % kReal * 16 + i * (T::kThreads / kReal) * Layout::kPitch;
        }
        const int index = thread + i * T::kThreads;
        return index / kReal * Layout::kPitch + index % kReal * 16;
    }

    // from: the tile's first row, in global memory. Rows at or behind `rows` are filled with zeros.
    template <int kCount>
    static void copy(unsigned shared, const char* from, int rows) {
        constexpr int kCopies = copies<kCount>();
        constexpr bool kEven = kCopies * T::kThreads == kCount * kReal;
        const int thread = unknown(threadIdx.x), left = rows * kReal - thread;
        if constexpr (T::kAsync && Layout::kVector) {
#pragma unroll
            for (int i = 0; i < kCopies; ++i) {
                if (!kEven && thread + i * T::kThreads >= kCount * kReal) continue;
                ptx::cp_async_16(shared + place(thread, i), from + thread * 16 + i * T::kThreads * 16,
                                 i * T::kThreads < left ? 16 : 0);
            }
        } else {
            // All loads of a batch are in flight before the first store.
            constexpr int kBatch = 4;
#pragma unroll 1
            for (int first = 0; first < kCopies; first += kBatch) {
                uint4 held[kBatch];
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const int index = thread + (first + i) * T::kThreads;
                    held[i] = load(from, index, index < min(rows, kCount) * kReal);
                }
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    if (thread + (first + i) * T::kThreads >= kCount * kReal) continue;
                    ptx::store_shared_16(shared + place(thread, first + i), held[i]);
                }
            }
        }
    }

    static uint4 load(const char* from, int index, bool inside) {
        uint4 chunk = {0, 0, 0, 0};
        if (!inside) return chunk;
        if constexpr (Layout::kVector) {
            chunk = *reinterpret_cast<const uint4*>(from + index * 16);
        } else {
            const int c = index % kReal * 8;
            const unsigned short* row = reinterpret_cast<const unsigned short*>(from + index / kReal * Layout::kBytes);
            unsigned* words = &chunk.x;
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const unsigned code = c + e < kHeadDim ? row[c + e] : 0;
                words[e / 2] |= code << (e % 2 * 16);
            }
        }
        return chunk;
    }

    // Where a row of global memory ends before the last chunk that products read: zeros, in `rows` rows.
    static void clear_padding(unsigned shared, int rows) {
        if constexpr (kReal < Layout::kChunks) {
            for (int r = threadIdx.x; r < rows; r += T::kThreads) {
                ptx::store_shared_16(shared + r * Layout::kPitch + kReal * 16, uint4{0, 0, 0, 0});
            }
        }
    }

    // Multiplies what this thread itself copied by a power of two, and rounds where it becomes subnormal.
    template <class Operand, int kCount>
    static void scale(unsigned shared, float factor) {
#pragma unroll 1
        for (int i = 0; i < copies<kCount>(); ++i) {
            const int thread = unknown(threadIdx.x);
            if (thread + i * T::kThreads >= kCount * kReal) continue;
            const unsigned at = shared + place(thread, i);
            uint4 chunk = ptx::load_shared_16(at);
            unsigned* words = &chunk.x;
#pragma unroll
            for (int w = 0; w < 4; ++w) words[w] = scaled<Operand>(words[w], factor);
            ptx::store_shared_16(at, chunk);
        }
    }
};
