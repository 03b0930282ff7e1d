"""Register blocking in local arrays, tiles of two dimensions in shared memory."""

import numpy as np
from numba import cuda, float32

LAUNCH = {"exercise": "tiled-matmul", "block": (8, 8), "grid": "ceil(n/16),ceil(m/16)", "shared": 0}
T = 16


@cuda.jit(device=True, inline=True)
def inside(i, most):
    return i < most


@cuda.jit(fastmath=False)
def matmul(a, b, c, m, n, k):
    ta = cuda.shared.array((16, 17), float32)
    tb = cuda.shared.array(shape=(16, 17), dtype=np.float32)
    sums = cuda.local.array((2, 2), float32)
    for i in range(2):
        for j in range(2):
            sums[i, j] = 0.0
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    for t in range(0, k, T):
        for i in range(y, T, 8):
            for j in range(x, T, 8):
                r, s = cuda.blockIdx.y * T + i, t + j
                ta[i, j] = a[r, s] if inside(r, m) and inside(s, k) else float32(0)
                r, s = t + i, cuda.blockIdx.x * T + j
                tb[i, j] = b[r, s] if inside(r, k) and inside(s, n) else float32(0)
        cuda.syncthreads()
        for s in range(T):
            for i in range(2):
                for j in range(2):
                    sums[i, j] = cuda.fma(ta[y + 8 * i, s], tb[s, x + 8 * j], sums[i, j])
        cuda.syncthreads()
    for i in range(2):
        for j in range(2):
            r, s = cuda.blockIdx.y * T + y + 8 * i, cuda.blockIdx.x * T + x + 8 * j
            if r < m and s < n:
                c[r, s] = sums[i, j]
