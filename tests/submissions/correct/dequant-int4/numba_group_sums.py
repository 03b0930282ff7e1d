"""C = A W with int4 weights in Numba: a thread a result, each group summed, then scaled."""

from numba import cuda, float32, int8, int32

LAUNCH = {"exercise": "dequant-int4", "block": "64", "grid": "ceil(n/64),m"}


@cuda.jit
def matmul_int4(a, w, scales, c, m, n, k, group):
    column, row = cuda.grid(1), cuda.blockIdx.y
    if column >= n:
        return
    total = float32(0)
    for first in range(0, k, group):
        part = float32(0)
        for t in range(first, min(k, first + group)):
            byte = int32(w[t // 2, column])
            code = int32(int8(byte << 4 if t % 2 == 0 else byte)) >> 4
            part += float32(a[row, t]) * float32(code)
        total += part * float32(scales[first // group, column])
    c[row, column] = total
