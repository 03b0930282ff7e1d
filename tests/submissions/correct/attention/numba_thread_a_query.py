"""Attention in Numba: a thread a query, the maximum first, then sums from the last key on."""

import math

from numba import cuda, float32
from numba.cuda.types import float16

LAUNCH = {"exercise": "attention", "block": "32", "grid": "ceil(seq_q/32),heads,batch"}
MOST = 128


@cuda.jit
def attention(q, k, v, out, lse, batch, heads, seq_q, seq_k, head_dim, causal):
    sums = cuda.local.array(MOST, float32)
    row = cuda.grid(1)
    head, entry = cuda.blockIdx.y, cuda.blockIdx.z
    if row >= seq_q:
        return
    seen = min(seq_k, row + seq_k - seq_q + 1) if causal else seq_k
    scale = float32(1) / math.sqrt(float32(head_dim))
    largest, total = float32(-math.inf), float32(0)
    for key in range(seen):
        x = float32(0)
        for d in range(head_dim):
            x += float32(q[entry, head, row, d]) * float32(k[entry, head, key, d])
        largest = max(largest, x * scale)
    for d in range(head_dim):
        sums[d] = float32(0)
    for key in range(seen - 1, -1, -1):
        x = float32(0)
        for d in range(head_dim):
            x += float32(q[entry, head, row, d]) * float32(k[entry, head, key, d])
        p = math.exp(float32(x * scale - largest))
        total += p
        for d in range(head_dim):
            sums[d] += p * float32(v[entry, head, key, d])
    lse[entry, head, row] = largest + math.log(total) if seen > 0 else largest
    for d in range(head_dim):
        out[entry, head, row, d] = float16(sums[d] / total) if seen > 0 else float16(0)
