// to (columns, rows) = transpose of from (rows, columns), for elements of 1, 2 or 4 bytes.
//
// Memory is read and written in words of 4 bytes, so that a warp moves 128 bytes of one row either way: a thread
// takes as many rows as a word has elements and exchanges bytes in registers; the rest of the exchange goes through
// shared memory. Rows and columns are multiples of the elements a word holds.
//
// Source: M. Harris, "An Efficient Matrix Transpose in CUDA C/C++" (the padded tile).
#include "common/tile.cuh"

// kPer words, element by element: word i held elements of row i, and holds those of column i.
template <int kPer>
void transpose_words(unsigned (&words)[kPer]) {
    if constexpr (kPer == 2) {
        const unsigned low = __byte_perm(words[0], words[1], 0x5410);
        words[1] = __byte_perm(words[0], words[1], 0x7632);
        words[0] = low;
    } else if constexpr (kPer == 4) {
        const unsigned a = __byte_perm(words[0], words[1], 0x5140), b = __byte_perm(words[0], words[1], 0x7362);
        const unsigned c = __byte_perm(words[2], words[3], 0x5140), d = __byte_perm(words[2], words[3], 0x7362);
        words[0] = __byte_perm(a, c, 0x5410), words[1] = __byte_perm(a, c, 0x7632);
        words[2] = __byte_perm(b, d, 0x5410), words[3] = __byte_perm(b, d, 0x7632);
    }
}

// Grid: one block a tile of 32 words x 32 words, columns fastest; block: 32 x 8.
template <int kSize>
__global__ void __launch_bounds__(256) transpose(const unsigned* from, unsigned* to, int rows, int columns) {
    constexpr int kPer = 4 / kSize, kEdge = 32 * kPer;  // elements
    __shared__ unsigned tile[kEdge][33];
    const int lane = threadIdx.x, across = ceil_div(columns, kEdge);
    const int row0 = static_cast<int>(blockIdx.x) / across * kEdge, column0 = static_cast<int>(blockIdx.x) % across * kEdge;
    const int column = column0 + lane * kPer;
#pragma unroll
    for (int group = threadIdx.y; group < 32; group += 8) {
        unsigned words[kPer];
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
            const int row = row0 + group * kPer + i;
            const bool inside = row < rows && column < columns;
            words[i] = load_or_zero(from, (static_cast<long long>(row) * columns + column) / kPer, inside);
        }
        transpose_words(words);
        // Lanes a bank apart would meet in it: eighths (halves) of the warp begin with different columns.
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
            const int i = (j + lane * kPer / 32) % kPer;
            unsigned word = words[0];
#pragma unroll
            for (int other = 1; other < kPer; ++other) word = i == other ? words[other] : word;
            tile[lane * kPer + i][group] = word;
        }
    }
    __syncthreads();
    const int row = row0 + lane * kPer;
#pragma unroll
    for (int i = threadIdx.y; i < kEdge; i += 8) {
        if (column0 + i < columns && row < rows) {
            to[(static_cast<long long>(column0 + i) * rows + row) / kPer] = tile[i][lane];
        }
    }
}
