"""Float tiles in shared memory."""

from numba import cuda, float32

LAUNCH = {"exercise": "fp16-matmul", "block": "16,16", "grid": "ceil(n/16),ceil(m/16)"}
TILE = 16


@cuda.jit
def matmul(a, b, c, m, n, k):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
    total = float32(0)
    for t in range(0, k, TILE):
        tile_a[y, x] = float32(a[row, t + x]) if row < m and t + x < k else float32(0)
        tile_b[y, x] = float32(b[t + y, column]) if t + y < k and column < n else float32(0)
        cuda.syncthreads()
        for i in range(TILE):
            total += tile_a[y, i] * tile_b[i, x]
        cuda.syncthreads()
    if row < m and column < n:
        c[row, column] = total
