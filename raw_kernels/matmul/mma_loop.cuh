// The loop of the mma.sync matmuls, whatever they make of the fragments they read: a block's tile of
// C, slabs of A and B through a ring of stages, fragments of a warp, and the store of its results.
#pragma once

#include "common/tile.cuh"
#include "matmul/mma_feed.cuh"
#include "ptx/mma.cuh"

// One warp's operands for 32 bytes of k.
template <class T>
struct Fragments {
    unsigned a[T::kMTiles][4];
    unsigned b[T::kNTiles][2];
};

// Reads fragments of the warp's rows of A and columns of B. Which column of C the column g of an
// n-tile is, is free as long as B and C agree: 16- and 32-bit operands take it as it comes; 8-bit
// ones interleave two n-tiles, since a lane gets neighbouring columns of a row of B together. See
// Columns. 32-bit operands are read word by word, straight into the registers of a fragment: 16
// bytes at once would have to be moved there.
template <int kSize, class T>
struct Reader {
    static constexpr int kBRowBytes = T::kBlockN * kSize;
    unsigned a_lane, b_lane;  // bytes from the start of a stage

    Reader(int warp_row, int warp_column) {
        const int lane = unknown(threadIdx.x) % 32, r = lane % 8, matrix = lane / 8;
        const int a_row = warp_row + r + matrix % 2 * 8;
        a_lane = a_row * T::kSlabBytes + ((matrix / 2 ^ swizzle_a<T>(a_row)) << 4);
        int row, chunk = warp_column * kSize / 16;
        if constexpr (kSize == 2) {  // matrices: k 0..7 and 8..15 of one chunk, then of the next
            row = r + matrix % 2 * 8;
            chunk += matrix / 2;
        } else if constexpr (kSize == 1) {  // k 4t and 4t+1; 4t+2 and 4t+3; the same from 16 on
            row = (r & 1) + (r >> 1) * 4 + matrix % 2 * 2 + matrix / 2 * 16;
        } else {
            row = lane % 4;
            chunk += lane / 16;
        }
        b_lane = T::kABytes + row * kBRowBytes + ((chunk ^ swizzle_b<kSize>(row)) << 4);
        if constexpr (kSize == 4) b_lane += lane / 4 % 4 * 4;
    }

    void read(Fragments<T>& to, unsigned stage, int step) const {
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i) read_a(to, i, stage, step);
        read_b(to, stage, step);
    }

    // m-tile i of A.
    void read_a(Fragments<T>& to, int i, unsigned stage, int step) const {
        ptx::ldmatrix_x4(to.a[i], stage + (a_lane ^ step * 32) + i * 16 * T::kSlabBytes);
    }

    // All of B.
    void read_b(Fragments<T>& to, unsigned stage, int step) const {
        const unsigned rows = stage + step * (32 / kSize) * kBRowBytes;
        if constexpr (kSize == 4) {
#pragma unroll
            for (int i = 0; i < T::kNTiles; ++i) {
#pragma unroll
                for (int word = 0; word < 2; ++word) {
                    to.b[i][word] =
                        ptx::load_shared_4(rows + (b_lane ^ i * 32) + word * 4 * kBRowBytes);
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < T::kNTiles; i += 2) {
                unsigned w[4];
                ptx::ldmatrix_x4_trans(w, rows + (b_lane ^ i * 8 * kSize));
                if constexpr (kSize == 2) {
                    to.b[i][0] = w[0], to.b[i][1] = w[1], to.b[i + 1][0] = w[2],
                    to.b[i + 1][1] = w[3];
                } else {  // even bytes are column 2g, odd ones 2g + 1
                    to.b[i][0] = ptx::permute_bytes<0x6420>(w[0], w[1]);
                    to.b[i][1] = ptx::permute_bytes<0x6420>(w[2], w[3]);
                    to.b[i + 1][0] = ptx::permute_bytes<0x7531>(w[0], w[1]);
                    to.b[i + 1][1] = ptx::permute_bytes<0x7531>(w[2], w[3]);
                }
            }
        }
    }
};

// A lane's elements of C come in runs of neighbouring columns: element x of run `run` of a row is
// element e of n-tile `tile`, and the run starts at column `column` of the warp's tile.
template <int kSize>
struct Columns {
    static constexpr int kRun = kSize == 1 ? 4 : 2;
    static int tile(int run, int x) { return kSize == 1 ? run * 2 + x % 2 : run; }
    static int e(int run, int x) { return kSize == 1 ? x / 2 : x; }
    static int column(int run, int t) { return kSize == 1 ? run * 16 + t * 4 : run * 8 + t * 2; }
};

// One aligned store of 8 or 16 bytes.
inline void store_run(float* to, const float (&v)[2]) {
    *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
}
inline void store_run(float* to, const float (&v)[4]) {
    *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
}
inline void store_run(int* to, const int (&v)[4]) {
    *reinterpret_cast<int4*>(to) = make_int4(v[0], v[1], v[2], v[3]);
}

// Writes the warp's tile of C, whose first element is (row, column): value(half of an m-tile, n-tile,
// e) is the lane's element e of row g or g + 8 of a tile. kWhole: n is a multiple of a run.
template <int kSize, class T, bool kWhole, class Output, class Value>
void store_tile(Output* c, int m, int n, int row, int column, const Value& value) {
    using Map = Columns<kSize>;
    constexpr int kRun = Map::kRun;
    const int lane = unknown(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < T::kMTiles * 2; ++i) {  // halves of m-tiles
        const int r = row + i * 8 + lane / 4;
        if (r >= m) continue;
        Output* const to = c + static_cast<long long>(r) * n;
#pragma unroll
        for (int run = 0; run < T::kNTiles * 2 / kRun; ++run) {
            const int first = column + Map::column(run, lane % 4);
            Output values[kRun];
#pragma unroll
            for (int x = 0; x < kRun; ++x) values[x] = value(i, Map::tile(run, x), Map::e(run, x));
            if constexpr (kWhole) {
                if (first < n) store_run(to + first, values);
            } else {
#pragma unroll
                for (int x = 0; x < kRun; ++x) {
                    if (first + x < n) to[first + x] = values[x];
                }
            }
        }
    }
}

// The block's tile of C, multiplied: slabs stream through the ring while `work` multiplies. Work:
//   void begin(reader, stage): reads the fragments of the first step;
//   void turn(reader, stage, next, meanwhile): multiplies the fragments that were read last, reads
//     those of step `next` from `stage`, and calls meanwhile() once on the way.
// store(row, column) then writes the warp's tile.
template <int kSize, class T, bool kVector, class Work, class Store>
void multiply_tile(const Problem& p, Work& work, const Store& store) {
    extern __shared__ __align__(128) unsigned char ring[];
    const unsigned shared = ptx::shared_address(ring);
    using Feeder = Feed<kSize, T, kVector>;
    const int slabs = (p.k - 1) / Feeder::kDepth + 1;
    const unsigned end = shared + T::kStages * T::kStageBytes;
    const int warp = unknown(threadIdx.x) / 32;
    const int warp_row = warp / T::kWarpsN * T::kWarpM, warp_column = warp % T::kWarpsN * T::kWarpN;
    const Reader<kSize, T> reader(warp_row, warp_column);

    const TileIndex tile = grouped_tile<T::kBand>(blockIdx.x, ceil_div(p.m, T::kBlockM),
                                                  ceil_div(p.n, T::kBlockN));
    const int row = tile.row * T::kBlockM, column = tile.column * T::kBlockN;
    Feeder feed(p, row, column);
    unsigned read = shared, write = shared;
#pragma unroll 1
    for (int s = 0; s < T::kStages - 1; ++s, write += T::kStageBytes) {
#pragma unroll
        for (int part = 0; part < Feeder::kParts; ++part) feed.fetch(write, part);
        if constexpr (!T::kAsync) feed.settle(write);
    }
    work.clear();
    if constexpr (T::kAsync) feed.settle(write);
    __syncthreads();
    work.begin(reader, read);
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab) {
#pragma unroll
        for (int step = 0; step < T::kSteps; ++step) {
            if (step < T::kSteps - 1) {
                // Into the stage that was read one slab ago: the last barrier was behind that.
                work.turn(reader, read, step + 1, [&] { feed.fetch(write, step); });
            } else {
                feed.settle(write);
                __syncthreads();
                write = write + T::kStageBytes == end ? shared : write + T::kStageBytes;
                // Behind the last slab there is none to read: read this one again, unused.
                if (slab + 1 < slabs)
                    read = read + T::kStageBytes == end ? shared : read + T::kStageBytes;
                work.turn(reader, read, 0, [] {});
            }
        }
    }
    store(row + warp_row, column + warp_column);
}
