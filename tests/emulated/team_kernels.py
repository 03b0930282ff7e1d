"""Kernels whose blocks meet through words in global memory, and how to run them."""

from __future__ import annotations

from typing import Any

import cudacase
import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.machine import Machine

Array = NDArray[Any]
HOPPER = (9, 0)

ROW_SUMS = r"""
__device__ unsigned first_tag = FIRST;
__device__ unsigned finished;
__device__ unsigned long long words[2][TEAMS * TEAM];

__device__ unsigned long long look(const unsigned long long* word) {
  unsigned long long found;
#if VOLATILE
  found = *(const volatile unsigned long long*)word;
#else
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(word) : "memory");
#endif
  return found;
}

__device__ void tell(unsigned long long* word, unsigned long long value) {
#if VOLATILE
  *(volatile unsigned long long*)word = value;
#else
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(word), "l"(value) : "memory");
#endif
}

// The sum of every member's value, in all lanes of the first warp. Meetings take turns between two
// words: whoever writes one again has seen that all have begun the next meeting, and so read it.
__device__ float meet(unsigned tag, float mine) {
  unsigned member = blockIdx.x % TEAM, team = blockIdx.x / TEAM;
  unsigned long long* box = words[tag % 2] + team * TEAM;
  if (threadIdx.x == 0 && member != LOST)
    tell(box + member, (unsigned long long)tag << 32 | __float_as_uint(mine));
  float all = 0;
  for (unsigned i = threadIdx.x; i < TEAM; i += 32) {
    unsigned long long word;
    do word = look(box + i); while ((unsigned)(word >> 32) != tag);
    all += __uint_as_float((unsigned)word);
  }
  __syncwarp();
  for (int d = 16; d; d /= 2) all += __shfl_xor_sync(~0u, all, d);
  return all;
}

// y[row]: the sum of the row, and what a second meeting finds; tags[row]: the first meeting's tag.
// Rows are whole slices.
extern "C" __global__ void __launch_bounds__(640)
row_sums(const float* x, float* y, unsigned* tags, int rows, int cols) {
  extern __shared__ float kept[];
  __shared__ float parts[20];
  unsigned member = blockIdx.x % TEAM, team = blockIdx.x / TEAM, teams = gridDim.x / TEAM;
  unsigned slice = cols / TEAM, turn = 0, tag;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(tag) : "l"(&first_tag) : "memory");
  for (unsigned row = team; row < rows; row += teams, ++turn) {
    float sum = 0;
    for (unsigned i = threadIdx.x; i < slice; i += blockDim.x) {
      kept[i] = x[(size_t)row * cols + member * slice + i];
      sum += kept[i];
    }
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
      float mine = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
      for (int d = 16; d; d /= 2) mine += __shfl_xor_sync(~0u, mine, d);
      float once = meet(tag + 2 * turn, mine), twice = meet(tag + 2 * turn + 1, once);
      if (threadIdx.x == 0 && member == 0) {
        y[2 * row] = once;
        y[2 * row + 1] = twice / TEAM;
        tags[row] = tag + 2 * turn;
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1)
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
                 :: "l"(&first_tag), "r"(tag + 2 * ((rows + teams - 1) / teams)) : "memory");
}
"""


def launched(
    source: str, out: int, *scalars: int, grid: int = 2, block: int = 64, **options: Any
) -> tuple[Array, Machine]:
    """``kernel(unsigned* o, int...)`` with all blocks together: o, and the machine."""
    only = options.pop("only", None)
    together = options.pop("together", True)
    machine = Machine(HOPPER, **options)
    machine.blocks = only
    program = machine.load(cudacase.ptx(source, HOPPER))
    o = machine.alloc(4 * out, "o")
    machine.write(o, np.zeros(out, np.uint32))
    params = [np.uint64(o).tobytes(), *(np.int32(s).tobytes() for s in scalars)]
    machine.launch(program, "kernel", (grid,), (block,), params, together=together)
    return machine.read(o, 4 * out).view(np.uint32), machine
