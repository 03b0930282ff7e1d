// C (m, n) = A (m, k) B (k, n), all row-major, on the tensor cores by mma.sync: one source for
// every operand type and accumulator (ptx/mma.cuh), any m, n, k >= 1. C is float32, or int32 for
// s8.
//
// The idea: a block owns a tile of C and keeps it in registers, 64 x 64 a warp at best, because a
// large warp tile reads the fewest bytes of shared memory per operation. Slabs of A and B stream
// through a ring of stages in shared memory, filled asynchronously while earlier slabs are
// multiplied. Rows in shared memory are XOR-swizzled in 16-byte chunks, so that neither the copies
// nor ldmatrix meet a bank twice, and fragments of the next 32 bytes of k are read while the
// present ones are multiplied. All tiles are measured in bytes along k, so one layout serves 8-,
// 16- and 32-bit operands.
//
// Sums run over k in ascending order, one accumulator an element. Slabs are zero-filled beyond k: a
// product of zeros changes no accumulator. Rows whose pitch is no multiple of 16 bytes take
// narrower copies (same results). Below sm_80 there is no cp.async: slabs pass through registers,
// two stages.
//
// Source: CUTLASS, "Efficient GEMM in CUDA" (tiles and stages); PTX ISA, "mma", "ldmatrix",
// "cp.async".
#include "matmul/mma_loop.cuh"

template <class Atom, class T>
struct Accumulator {
    static constexpr int kSize = sizeof(typename Atom::Operand::Storage);
    typename Atom::Register tiles[T::kMTiles][T::kNTiles][Atom::kRegisters];
    Fragments<T> fragments[2];

    void clear() {
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i)
#pragma unroll
            for (int j = 0; j < T::kNTiles; ++j)
#pragma unroll
                for (int r = 0; r < Atom::kRegisters; ++r) tiles[i][j][r] = 0;
    }

    void begin(const Reader<kSize, T>& reader, unsigned stage) {
        reader.read(fragments[0], stage, 0);
    }

    template <class Meanwhile>
    void turn(const Reader<kSize, T>& reader, unsigned stage, int next,
              const Meanwhile& meanwhile) {
        reader.read(fragments[next % 2], stage, next);
        meanwhile();
        add(fragments[(next + 1) % 2]);
    }

    // There and back along n, so that neighbouring instructions share an operand.
    void add(const Fragments<T>& f) {
#pragma unroll
        for (int i = 0; i < T::kMTiles; ++i) {
#pragma unroll
            for (int back = 0; back < T::kNTiles; ++back) {
                const int j = i % 2 == 0 ? back : T::kNTiles - 1 - back;
                Atom::multiply(tiles[i][j], f.a[i], f.b[j]);
            }
        }
    }
};

// kVector: n and k are multiples of 16 bytes, so every row starts on one; else any n and k.
// Grid: one block a tile of C; block: T::kThreads; dynamic shared memory: T::kStages *
// T::kStageBytes.
template <class Atom, class T, bool kVector>
__global__ void __launch_bounds__(T::kThreads)
    matmul_mma(const typename Atom::Operand::Storage* a, const typename Atom::Operand::Storage* b,
               typename Atom::Output* c, int m, int n, int k) {
    const Problem p{reinterpret_cast<const char*>(a), reinterpret_cast<const char*>(b), m, n, k};
    using Sums = Accumulator<Atom, T>;
    Sums sums;
    multiply_tile<Sums::kSize, T, kVector>(p, sums, [&](int row, int column) {
        store_tile<Sums::kSize, T, kVector>(
            c, m, n, row, column,
            [&](int i, int j, int e) { return Atom::value(sums.tiles[i / 2][j], i % 2, e); });
    });
}
