// How matmul/mma.cu tiles its operands in shared memory, and the copies that fill the tiles: the
// shape of a block's work (Tile), the swizzle, and one thread's share of the copies (Feed).
#pragma once

#include "common/unknown.cuh"
#include "ptx/async.cuh"
#include "ptx/shared.cuh"

// The launch shape and the pipeline, chosen by capability on the host.
template <int kM, int kN, int kSlab, int kWarpM_, int kWarpN_, int kStages_, int kBand_,
          bool kAsync_>
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
    static_assert(kM % kWarpM == 0 && kN % kWarpN == 0 && kWarpM % 16 == 0, "whole warp tiles");
};

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

// B is read by ldmatrix in rows 0..7 (16 bit), in rows 0 1 4 5 8 9 12 13 (8 bit), or in rows 0..3
// two chunks at a time (32 bit): each group of eight chunks must fall in different banks. Its rows
// are eight chunks or a multiple of it: in a shorter one, a swizzled chunk would fall outside.
template <int kSize>
int swizzle_b(int row) {
    return kSize == 2 ? row & 7 : kSize == 4 ? (row & 3) * 2 : (row & 1) | ((row >> 1) & 6);
}

// This thread's share of the copies global -> shared, slab after slab along k. kVector: 16 bytes at
// a time.
template <int kSize, class T, bool kVector>
struct Feed {
    static constexpr int kDepth = T::kSlabBytes / kSize;  // elements of k in a slab
    static constexpr int kAChunks = T::kSlabBytes / 16, kARows = T::kThreads / kAChunks;
    static constexpr int kBRowBytes = T::kBlockN * kSize, kBChunks = kBRowBytes / 16;
    static constexpr int kBRows = T::kThreads / kBChunks;
    static constexpr int kACopies = T::kBlockM / kARows, kBCopies = kDepth / kBRows;
    static constexpr int kCopies = kACopies + kBCopies, kParts = T::kSteps - 1;
    static constexpr int kBPeriod = kSize == 1 ? 16 : kSize == 2 ? 8 : 4;  // of swizzle_b
    static_assert(kBRowBytes % 128 == 0, "the swizzle of B covers 128 bytes");
    static_assert(kARows % 8 == 0 && kBRows % kBPeriod == 0, "a thread's rows share one swizzle");
    static_assert(T::kBlockM % kARows == 0 && kDepth % kBRows == 0, "slabs are whole copies");

    long long a_step, a_next,
        b_step;         // bytes from a copy to the next; for A, from a slab's last to the next slab
    const char *a, *b;  // what the next copies read
    unsigned a_store, b_store;  // the same chunk's place in a stage
    int a_row, a_depth, b_row;  // and in the slab
    int a_rows, depth_left;     // rows and k left from there on
    uint4 held[T::kAsync ? 1 : kCopies];

    // Turns to the first slab of the tile of C at (row, column).
    Feed(const Problem& p, int row, int column) {
        const int thread = unknown(threadIdx.x);
        const long long a_pitch = static_cast<long long>(p.k) * kSize,
                        b_pitch = static_cast<long long>(p.n) * kSize;
        a_row = thread / kAChunks;
        a_depth = thread % kAChunks * (16 / kSize);
        b_row = thread / kBChunks;
        b_store =
            T::kABytes + b_row * kBRowBytes + ((thread % kBChunks ^ swizzle_b<kSize>(b_row)) << 4);
        column += thread % kBChunks * (16 / kSize);
        a = p.a + (row + a_row) * a_pitch + a_depth * kSize;
        b = p.b + b_row * b_pitch + static_cast<long long>(column) * kSize;
        a_rows = p.m - row - a_row;
        depth_left = p.k;
        a_step = kARows * a_pitch;
        a_next = T::kSlabBytes - (kACopies - 1) * a_step;
        b_step = kBRows * b_pitch;
        a_store = a_row * T::kSlabBytes + ((thread % kAChunks ^ swizzle_a<T>(a_row)) << 4);
        if (column >= p.n) b_row = 1 << 30;  // a column with no rows
    }

    // Copy i of the slab: whole chunks are in or out.
    void copy(int i, unsigned stage) {
        const int rows = i < kACopies ? i * kARows : (i - kACopies) * kBRows;
        const bool inside =
            i < kACopies ? rows < a_rows && a_depth < depth_left : rows < depth_left - b_row;
        const char* from = i < kACopies ? a : b;
        const unsigned to =
            stage + (i < kACopies ? a_store + rows * T::kSlabBytes : b_store + rows * kBRowBytes);
        if constexpr (T::kAsync) {
            ptx::cp_async_16(to, from, inside ? 16 : 0);
        } else {
            held[i] = inside ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
        }
        if (i < kACopies) {
            a += i < kACopies - 1 ? a_step : a_next;
        } else {
            b += b_step;
        }
    }

    // Starts part `part` of the kParts that a slab's copies are spread over.
    void fetch(unsigned stage, int part) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            if (i * kParts / kCopies == part) copy(i, stage);
        }
        if (part != kParts - 1) return;
        depth_left -= kDepth;
        if constexpr (T::kAsync) ptx::cp_async_commit();
    }

    // Makes the oldest slab but kStages - 2 ready in shared memory, for this thread.
    void settle(unsigned stage) {
        if constexpr (T::kAsync) {
            ptx::cp_async_wait<T::kStages - 2>();
        } else {
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

template <int kSize>
struct Bits;
template <>
struct Bits<1> {
    using Type = unsigned char;
};
template <>
struct Bits<2> {
    using Type = unsigned short;
};
template <>
struct Bits<4> {
    using Type = unsigned;
};

// Rows start anywhere: 4 bytes at a time, neighbours to neighbouring threads, so that a warp's
// accesses are dense. Asynchronous where every row starts on a multiple of 4 bytes, else element by
// element.
template <int kSize, class T>
struct Feed<kSize, T, false> {
    static constexpr int kDepth = T::kSlabBytes / kSize, kParts = T::kSteps - 1;
    static constexpr int kAWords = T::kSlabBytes / 4, kARows = T::kThreads / kAWords;
    static constexpr int kBRowBytes = T::kBlockN * kSize, kBWords = kBRowBytes / 4;
    static constexpr int kBRows = T::kThreads / kBWords;
    static constexpr int kBatch = 4;  // copies whose reads are in flight together
    static_assert(kBRowBytes % 128 == 0, "the swizzle of B covers 128 bytes");
    static_assert(T::kBlockM % (kBatch * kARows) == 0 && kDepth % (kBatch * kBRows) == 0,
                  "slabs are whole batches");

    const char *a, *b;  // the thread's word of the first row of the slab
    long long a_pitch, b_pitch;
    int a_rows, b_columns,
        depth_left;  // left from the tile's first row, the thread's first column, the slab on
    bool whole;      // words are in or out

    Feed(const Problem& p, int row, int column) {
        a_pitch = static_cast<long long>(p.k) * kSize;
        b_pitch = static_cast<long long>(p.n) * kSize;
        a = p.a + row * a_pitch;
        b = p.b + static_cast<long long>(column) * kSize;
        a_rows = p.m - row;
        b_columns = p.n - column;
        depth_left = p.k;
        whole = (a_pitch | b_pitch) % 4 == 0;
    }

    static void copy(unsigned (&to)[kBatch], const char* (&from)[kBatch], int (&inside)[kBatch],
                     bool whole) {
        if (T::kAsync && whole) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) ptx::cp_async_4(to[i], from[i], inside[i] > 0 ? 4 : 0);
            return;
        }
        unsigned words[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            using Element = typename Bits<kSize>::Type;
            const Element* elements = reinterpret_cast<const Element*>(from[i]);
            words[i] = 0;
#pragma unroll
            for (int e = 0; e < 4 / kSize; ++e) {
                if (e < inside[i]) words[i] |= static_cast<unsigned>(elements[e]) << 8 * kSize * e;
            }
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) ptx::store_shared_4(to[i], words[i]);
    }

    // The whole slab in the first part.
    void fetch(unsigned stage, int part) {
        if (part == 0) {
            const int thread = unknown(threadIdx.x);
            unsigned to[kBatch];
            const char* from[kBatch];
            int inside[kBatch];
            const int a_word = thread % kAWords, b_word = thread % kBWords;
#pragma unroll 1
            for (int first = thread / kAWords; first < T::kBlockM; first += kBatch * kARows) {
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const int row = first + i * kARows;
                    to[i] = stage + row * T::kSlabBytes + ((a_word / 4 ^ swizzle_a<T>(row)) << 4) +
                            a_word % 4 * 4;
                    from[i] = a + row * a_pitch + a_word * 4;
                    inside[i] = row < a_rows ? depth_left - a_word * (4 / kSize) : 0;
                }
                copy(to, from, inside, whole);
            }
#pragma unroll 1
            for (int first = thread / kBWords; first < kDepth; first += kBatch * kBRows) {
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const int row = first + i * kBRows;
                    to[i] = stage + T::kABytes + row * kBRowBytes +
                            ((b_word / 4 ^ swizzle_b<kSize>(row)) << 4) + b_word % 4 * 4;
                    from[i] = b + row * b_pitch + b_word * 4;
                    inside[i] = row < depth_left ? b_columns - b_word * (4 / kSize) : 0;
                }
                copy(to, from, inside, whole);
            }
        }
        if (part != kParts - 1) return;
        a += T::kSlabBytes;
        b += kDepth * b_pitch;
        depth_left -= kDepth;
        if constexpr (T::kAsync) ptx::cp_async_commit();
    }

    void settle(unsigned) {
        if constexpr (T::kAsync) ptx::cp_async_wait<T::kStages - 2>();
    }
};
