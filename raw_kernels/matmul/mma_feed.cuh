// How matmul/mma.cu tiles its operands in shared memory, and the copies that fill the tiles: the shape of a
// block's work (Tile), the swizzle, and one thread's share of the copies (Feed).
#pragma once

#include "ptx/async.cuh"
#include "ptx/shared.cuh"

// The launch shape and the pipeline, chosen by capability on the host.
template <int kM, int kN, int kSlab, int kWarpM_, int kWarpN_, int kStages_, int kBand_, bool kAsync_>
struct Tile {
    static constexpr int kBlockM = kM, kBlockN = kN, kSlabBytes = kSlab;
    static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_, kStages = kStages_, kBand = kBand_;
    static constexpr bool kAsync = kAsync_;
    static constexpr int kWarpsN = kN / kWarpN, kThreads = 32 * (kM / kWarpM) * kWarpsN;
    static constexpr int kABytes = kM * kSlab, kStageBytes = (kM + kN) * kSlab;
    static constexpr int kSteps = kSlab / 32;  // of 32 bytes of k: one Atom deep
    static constexpr int kMTiles = kWarpM / 16, kNTiles = kWarpN / 8;
    static_assert(kSlab == 64 || kSlab == 128, "the swizzle of A covers 64 and 128 bytes");
    static_assert(kAsync ? kStages >= 2 : kStages == 2, "slabs through registers alternate");
    static_assert(kWarpN == 32 || kWarpN == 64, "fragments of B come in groups of 32 columns");
};

// A value the compiler knows nothing of: what is computed from it stays where it is written, out of registers
// that the main loop needs.
inline int unknown(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

struct Problem {
    const char* a;
    const char* b;
    int m, n, k;
};

// Which 16-byte chunk of a shared row takes chunk `chunk`: chunk ^ swizzle(row).
template <class T>
int swizzle_a(int row) {
    return T::kSlabBytes == 128 ? row & 7 : (row >> 1) & 3;
}

// B is read by ldmatrix in rows 0..7 (16 bit), in rows 0 1 4 5 8 9 12 13 (8 bit), or in rows 0..3 two chunks
// at a time (32 bit): each group of eight chunks must fall in different banks.
template <int kSize>
int swizzle_b(int row) {
    return kSize == 2 ? row & 7 : kSize == 4 ? (row & 3) * 2 : (row & 1) | ((row >> 1) & 6);
}

// One 16-byte chunk whose global address is only element-aligned, in units of `unit` bytes that divide the
// pitch. The first `inside` elements exist; the rest is zero.
template <class Element, bool kAsync>
void copy_narrow(unsigned shared, const char* from, int inside, int unit) {
    constexpr int kSize = sizeof(Element);
    if (kAsync && unit >= 4) {
        for (int byte = 0; byte < 16; byte += unit) {
            const bool real = byte / kSize < inside;
            if (unit == 8) {
                ptx::cp_async_8(shared + byte, from + byte, real ? 8 : 0);
            } else {
                ptx::cp_async_4(shared + byte, from + byte, real ? 4 : 0);
            }
        }
        return;
    }
    const Element* elements = reinterpret_cast<const Element*>(from);
    uint4 chunk = {0, 0, 0, 0};
    unsigned* words = &chunk.x;
#pragma unroll
    for (int i = 0; i < 16 / kSize; ++i) {
        const unsigned bits = i < inside ? elements[i] : 0;
        words[i * kSize / 4] |= bits << (i * kSize % 4 * 8);
    }
    ptx::store_shared_16(shared, chunk);
}

template <int kSize>
struct Bits;
template <> struct Bits<1> { using Type = unsigned char; };
template <> struct Bits<2> { using Type = unsigned short; };
template <> struct Bits<4> { using Type = unsigned; };

// This thread's share of the copies global -> shared, slab after slab along k.
template <int kSize, class T, bool kVector>
struct Feed {
    static constexpr int kDepth = T::kSlabBytes / kSize;  // elements of k in a slab
    static constexpr int kAChunks = T::kSlabBytes / 16, kARows = T::kThreads / kAChunks;
    static constexpr int kBRowBytes = T::kBlockN * kSize, kBChunks = kBRowBytes / 16;
    static constexpr int kBRows = T::kThreads / kBChunks;
    static constexpr int kACopies = T::kBlockM / kARows, kBCopies = kDepth / kBRows;
    static constexpr int kCopies = kACopies + kBCopies, kParts = T::kSteps - 1;
    static_assert(kARows % 8 == 0 && kBRows % (kSize == 1 ? 16 : kSize == 2 ? 8 : 4) == 0,
                  "a thread's rows share one swizzle");

    long long a_step, a_next, b_step;  // bytes from a copy to the next; for A, from a slab's last to the next slab
    const char *a, *b;                 // what the next copies read
    unsigned a_store, b_store;         // the same chunk's place in a stage
    int a_row, a_depth, b_row;         // and in the slab
    int a_rows, b_cols, depth_left;    // rows, columns, k left from there on
    int unit;                          // widest copy that divides both pitches
    uint4 held[kVector && !T::kAsync ? kCopies : 1];

    // Turns to the first slab of the tile of C at (row, column).
    Feed(const Problem& p, int row, int column) {
        const int thread = unknown(threadIdx.x);
        const long long a_pitch = static_cast<long long>(p.k) * kSize, b_pitch = static_cast<long long>(p.n) * kSize;
        a_row = thread / kAChunks;
        a_depth = thread % kAChunks * (16 / kSize);
        b_row = thread / kBChunks;
        b_store = T::kABytes + b_row * kBRowBytes + ((thread % kBChunks ^ swizzle_b<kSize>(b_row)) << 4);
        column += thread % kBChunks * (16 / kSize);
        a = p.a + (row + a_row) * a_pitch + a_depth * kSize;
        b = p.b + b_row * b_pitch + static_cast<long long>(column) * kSize;
        a_rows = p.m - row - a_row;
        b_cols = p.n - column;
        depth_left = p.k;
        a_step = kARows * a_pitch;
        a_next = T::kSlabBytes - (kACopies - 1) * a_step;
        b_step = kBRows * b_pitch;
        a_store = a_row * T::kSlabBytes + ((thread % kAChunks ^ swizzle_a<T>(a_row)) << 4);
        if (kVector && b_cols <= 0) b_row = 1 << 30;  // a column with no rows
        unit = (a_pitch | b_pitch) % 8 == 0 ? 8 : (a_pitch | b_pitch) % 4 == 0 ? 4 : kSize;
    }

    // Copy i of the slab. `inside` counts the elements left in its row; whole chunks are in or out where the
    // pitch is a multiple of 16 bytes.
    void copy(int i, unsigned stage) {
        const int rows = i < kACopies ? i * kARows : (i - kACopies) * kBRows;
        int inside;
        if (i < kACopies) {
            inside = rows < a_rows ? depth_left - a_depth : 0;
        } else {
            inside = rows < depth_left - b_row ? kVector ? 1 : b_cols : 0;
        }
        const char* from = i < kACopies ? a : b;
        const unsigned to = stage + (i < kACopies ? a_store + rows * T::kSlabBytes : b_store + rows * kBRowBytes);
        if constexpr (!kVector) {
            copy_narrow<typename Bits<kSize>::Type, T::kAsync>(to, from, inside, unit);
        } else if constexpr (T::kAsync) {
            ptx::cp_async_16(to, from, inside > 0 ? 16 : 0);
        } else {
            held[i] = inside > 0 ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
        }
        if (i < kACopies) {
            a += i < kACopies - 1 ? a_step : a_next;
        } else {
            b += b_step;
        }
    }

    // Starts part `part` of the kParts that a slab's copies are spread over.
    void fetch(unsigned stage, int part) {
        if constexpr (kVector) {
#pragma unroll
            for (int i = 0; i < kCopies; ++i) {
                if (i * kParts / kCopies == part) copy(i, stage);
            }
        } else if (part == 0) {
#pragma unroll 1
            for (int i = 0; i < kCopies; ++i) copy(i, stage);
        }
        if (part != kParts - 1) return;
        depth_left -= kDepth;
        if constexpr (T::kAsync) ptx::cp_async_commit();
    }

    // Makes the oldest slab but kStages - 2 ready in shared memory, for this thread.
    void settle(unsigned stage) {
        if constexpr (T::kAsync) {
            ptx::cp_async_wait<T::kStages - 2>();
        } else if constexpr (kVector) {
#pragma unroll
            for (int i = 0; i < kCopies; ++i) {
                const int rows = (i - kACopies) * kBRows;
                ptx::store_shared_16(stage + (i < kACopies ? a_store + i * kARows * T::kSlabBytes
                                                           : b_store + rows * kBRowBytes),
                                     held[i]);
            }
        }
    }
};
