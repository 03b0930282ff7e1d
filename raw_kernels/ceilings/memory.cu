// How fast the card's memory is read, and copied: 16 bytes a thread and access, some of them on their way
// together. How many are best depends on the card and on the size: several are timed.
//
// Reading: every thread adds up the 32-bit words it reads, modulo 2^32; nothing is written but these sums.
// Copying: every byte is read once and written once.
//
// `words` counts 16-byte pieces; it is a multiple of the threads of the grid (reading) or of a block's share
// (copying). Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
constexpr int kThreads = 256;

// sums is (threads). Piece i is read by thread i modulo the number of threads.
template <int kAhead>
__global__ void __launch_bounds__(kThreads) ceiling_read(const uint4* from, unsigned* sums, int words) {
    const int threads = gridDim.x * kThreads, thread = blockIdx.x * kThreads + threadIdx.x;
    unsigned sum = 0;
    for (long long at = thread; at < words; at += static_cast<long long>(kAhead) * threads) {
        uint4 read[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const long long piece = at + static_cast<long long>(i) * threads;
            read[i] = piece < words ? __ldcg(from + piece) : uint4{0, 0, 0, 0};
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) sum += read[i].x + read[i].y + read[i].z + read[i].w;
    }
    sums[thread] = sum;
}

// Grid: one block for every kThreads * kCopies pieces.
template <int kCopies>
__global__ void __launch_bounds__(kThreads) ceiling_copy(const uint4* from, uint4* to, int words) {
    const long long first = static_cast<long long>(blockIdx.x) * kThreads * kCopies + threadIdx.x;
    uint4 read[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) read[i] = __ldcg(from + first + i * kThreads);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) to[first + i * kThreads] = read[i];
}
