// How fast the tensor cores take mma.sync: operands and sums stay in registers, and nothing else is done.
//
// The idea: each warp keeps a 64 x 32 tile of sums, 16 products that do not wait for each other. It adds A B1 and
// A B2 to it `pairs` times, and A B1 once more. The host chooses A B1 + A B2 = 1 in every element, so that the sums
// end as pairs + A B1: small integers, exact in every accumulator, and wrong if one product of any kind were left
// out. Products in total: warps * (2 pairs + 1) * 64 * 32 * k, with k = 32 bytes of the operand.
//
// A is (64, k) row-major; B1 and B2 are (32, k): columns of B in rows. sums is (warps, 64, 32).
// Source: PTX ISA, "Matrix multiply-accumulate instructions: mma".
#include "ptx/mma_narrow.cuh"

constexpr int kWarps = 8, kRowTiles = 4, kColumnTiles = 4;
constexpr int kWords = 8;  // 4-byte words in 32 bytes of k

template <class Atom>
struct Tile {
    unsigned a[kRowTiles][4];
    typename Atom::Register sums[kRowTiles][kColumnTiles][Atom::kRegisters] = {};

    void add(const unsigned (&b)[kColumnTiles][2]) {
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
            for (int j = 0; j < kColumnTiles; ++j) Atom::multiply(sums[i][j], a[i], b[j]);
        }
    }
};

inline void load_columns(unsigned (&b)[kColumnTiles][2], const unsigned* from, int g, int t) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
        b[j][0] = from[(8 * j + g) * kWords + t];
        b[j][1] = from[(8 * j + g) * kWords + t + 4];
    }
}

template <class Atom>
__global__ void __launch_bounds__(32 * kWarps)
    ceiling_mma(const unsigned* a, const unsigned* b1, const unsigned* b2, typename Atom::Output* sums, int pairs) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Tile<Atom> tile;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const int row = 16 * i + g + word % 2 * 8;
            tile.a[i][word] = a[row * kWords + t + word / 2 * 4];
        }
    }
    unsigned first[kColumnTiles][2], second[kColumnTiles][2];
    load_columns(first, b1, g, t);
    load_columns(second, b2, g, t);
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair) {
        tile.add(first);
        tile.add(second);
    }
    tile.add(first);

    constexpr int kRows = 16 * kRowTiles, kColumns = 8 * kColumnTiles;
    const long long warp = static_cast<long long>(blockIdx.x) * kWarps + threadIdx.x / 32;
    typename Atom::Output* mine = sums + warp * kRows * kColumns;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
            for (int at = 0; at < 4; ++at) {
                const int row = 16 * i + g + at / 2 * 8, column = 8 * j + 2 * t + at % 2;
                mine[row * kColumns + column] = Atom::value(tile.sums[i][j], at / 2, at % 2);
            }
        }
    }
}
