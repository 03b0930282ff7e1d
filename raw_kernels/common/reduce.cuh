// Reductions over the threads that share a row: lanes of a warp, warps of a block, blocks of a
// cluster. All threads end with the same bits: partial results meet in an order that depends on
// their places only, the lower place being the left operand.
//
// A result is any struct of 4-byte members; an operation is a function object over two of them, or
// one that merges the lanes of a warp together (lanes<kLanes>).
#pragma once

#include "ptx/cluster.cuh"

#ifdef GPULAB_CLUSTER
#define GPULAB_CLUSTER_DIMS __cluster_dims__(GPULAB_CLUSTER, 1, 1)
constexpr int kCluster = GPULAB_CLUSTER;
#else
#define GPULAB_CLUSTER_DIMS
constexpr int kCluster = 1;
#endif

inline float infinity() { return __uint_as_float(0x7f800000u); }
inline float not_a_number() { return __uint_as_float(0x7fffffffu); }

// A thread's sum in kCount parts, added to in turns: no addition waits for the one before it.
template <int kCount>
struct SplitSum {
    float part[kCount] = {};
    float& of(int number) { return part[number % kCount]; }
    float total() const {
        float sum[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum[i] = part[i];
#pragma unroll
        for (int width = kCount / 2; width > 0; width /= 2) {
#pragma unroll
            for (int i = 0; i < width; ++i) sum[i] += sum[i + width];
        }
        return sum[0];
    }
};

// The value of the lane whose number differs in the bits of `mask`.
template <typename V>
V from_lane_xor(V mine, int mask) {
    static_assert(sizeof(V) % 4 == 0, "4-byte members");
    V other;
#pragma unroll
    for (int i = 0; i < int(sizeof(V) / 4); ++i) {
        reinterpret_cast<unsigned*>(&other)[i] =
            __shfl_xor_sync(0xffffffffu, reinterpret_cast<const unsigned*>(&mine)[i], mask);
    }
    return other;
}

// Over each aligned group of kLanes lanes; the whole warp calls it.
template <int kLanes, typename V, typename Op>
V warp_reduce(V value, Op op) {
    static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "a power of two");
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) {
        const V other = from_lane_xor(value, mask);
        value = threadIdx.x & mask ? op(other, value) : op(value, other);
    }
    return value;
}

struct Add {
    float operator()(float a, float b) const { return a + b; }
    template <int kLanes>
    static float lanes(float value) {
        return warp_reduce<kLanes>(value, Add{});
    }
    // Of several values a lane.
    template <int kLanes, int kCount>
    static float lanes(const float (&value)[kCount]) {
        float sum = value[0];
#pragma unroll
        for (int i = 1; i < kCount; ++i) sum += value[i];
        return lanes<kLanes>(sum);
    }
};

struct Larger {
    float operator()(float a, float b) const { return fmaxf(a, b); }
    template <int kLanes>
    static float lanes(float value) {
        return warp_reduce<kLanes>(value, Larger{});
    }
};

// Words that the blocks of a cluster send to this one where they poll: two of each block, in turns.
inline unsigned long long* polled_words() {
    __shared__ unsigned long long words[2 * kCluster];
    return words;
}

// A cluster's blocks must all run before one writes into another's shared memory: arrive when the
// kernel starts, wait before the first reduction.
template <bool kPolls = false>
void cluster_begin() {
    if constexpr (kPolls) {
        if (threadIdx.x < 2 * kCluster) polled_words()[threadIdx.x] = 0;
    }
    if (kCluster > 1) ptx::cluster_arrive();
}

inline void cluster_ready() {
    if (kCluster > 1) ptx::cluster_wait();
}

// Over kGroup threads of this block (and as many of the other blocks of the cluster): every warp
// hands its value to every block. Reductions of one kSlot use two places in turns: while one row's
// is read by who is late, the next row's is written; the one after that has passed a barrier.
template <int kGroup, int kSlot, typename V, typename Op>
V group_reduce(V value, Op op, unsigned turn) {
    value = Op::template lanes<(kGroup < 32 ? kGroup : 32)>(value);
    if constexpr (kGroup > 32 || kCluster > 1) {
        constexpr int kWarps = kGroup / 32, kParts = kWarps * kCluster;
        static_assert(kWarps >= 1 && (kParts & (kParts - 1)) == 0, "a power of two of whole warps");
        __shared__ V parts[2][kParts];
        V* const part = parts[turn % 2];
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if constexpr (kCluster > 1) {
            if (lane < kCluster) {
                const unsigned here = ptx::shared_address(part + ptx::cluster_rank() * kWarps + warp);
#pragma unroll
                for (int i = 0; i < int(sizeof(V) / 4); ++i) {
                    ptx::store_cluster(here + 4 * i, lane,
                                       reinterpret_cast<const unsigned*>(&value)[i]);
                }
            }
            ptx::cluster_arrive();
            ptx::cluster_wait();
        } else {
            if (lane == 0) part[warp] = value;
            __syncthreads();
        }
        value = part[lane % kParts];
#pragma unroll
        for (int i = 32; i < kParts; i += 32) value = op(value, part[lane + i]);
        value = Op::template lanes<(kParts < 32 ? kParts : 32)>(value);
    }
    return value;
}

// As group_reduce, of a block's warps first and then of the blocks. Each sends one word to every other,
// with the meeting's number, and all warps poll for them: the fastest way while nobody else needs the
// instruction slots. Who sends its word of meeting n + 2 has passed meeting n + 1, before which the warps of
// every block had met, with what they polled of meeting n behind them.
template <int kGroup, typename V, typename Op>
V polled_reduce(V value, Op op, unsigned meeting) {
    constexpr int kWarps = kGroup / 32;
    static_assert(sizeof(V) == 4 && kWarps >= 1 && kWarps <= 32, "a word");
    __shared__ V parts[2][kWarps];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = meeting % 2;
    value = Op::template lanes<32>(value);
    if (lane == 0) parts[place][warp] = value;
    __syncthreads();
    value = Op::template lanes<kWarps>(parts[place][lane % kWarps]);
    unsigned long long* const words = polled_words() + place * kCluster;
    if (warp == 0 && lane < kCluster) {
        ptx::send_cluster_numbered(ptx::shared_address(words + ptx::cluster_rank()), lane,
                                   reinterpret_cast<const unsigned&>(value), meeting + 1);
    }
    const unsigned word = ptx::receive_numbered(ptx::shared_address(words + lane % kCluster), meeting + 1);
    return Op::template lanes<kCluster>(reinterpret_cast<const V&>(word));
}

// Over the threads of a row's team (common/row.cuh).
template <int kSlot, class Row, typename V, typename Op>
V row_reduce(Row& row, V value, Op op) {
    if constexpr (Row::kPolls) {
        return polled_reduce<Row::kGroup>(value, op, row.meetings++);
    } else {
        return group_reduce<Row::kGroup, kSlot>(value, op, row.turn);
    }
}

// Behind it the slot of the reduction before may be used again for the same row.
template <class Row>
void row_meet(const Row&) {
    static_assert(!Row::kPolls, "what polls has a place for each meeting");
    if constexpr (kCluster > 1) {
        ptx::cluster_arrive();
        ptx::cluster_wait();
    } else if constexpr (Row::kGroup > 32) {
        __syncthreads();
    }
}

// Whether any of the rows that share a warp (or this one row) is concerned; uniform where needed
// so that all may take part in another reduction. `mine` is the same in all threads of a row.
template <int kGroup>
bool any_row(bool mine) {
    if constexpr (kGroup < 32) return __any_sync(0xffffffffu, mine);
    return mine;
}
