// One lane leaves a value for its warp, trusting that the vote they all take part in makes it
// visible. Votes, matches and reductions order no memory.
extern "C" __global__ void vote_order(const float* x, float* y)
{
    __shared__ float limit;
    const int lane = threadIdx.x;
    if (lane == 0) {
        limit = 0.0f;
    }
    __syncwarp();
    if (lane == 0) {
        limit = 2.0f * x[31];  // BUG: race
    }
    const bool some = __any_sync(0xffffffffu, x[lane] > 3.0f);
    y[lane] = some ? limit : 0.0f;  // BUG: race
}
