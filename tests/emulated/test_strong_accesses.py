"""Loads, stores and atomics by which blocks meet: their bits, and what they order."""

from __future__ import annotations

from typing import Any

import cudacase
import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab.errors import FaultError

HOPPER = (9, 0)


def launched(source: str, out: int, block: int = 64, **options: Any) -> NDArray[Any]:
    """``kernel(unsigned* o)`` with two blocks: the words of o."""
    o = np.zeros(out, np.uint32)
    ran = cudacase.run(source, [o], grid=(2,), block=(block,), capability=HOPPER, **options)
    return ran.arrays[0]


# -- instructions ----------------------------------------------------------------------------------

ORDERS = [("relaxed.gpu", "relaxed.gpu"), ("acquire.gpu", "release.gpu"), ("volatile", "volatile")]
FORMS = {  # of the type, of asm's operands, and words moved
    "b32": ("unsigned a", "%0", "a", 1),
    "b64": ("unsigned long long a", "%0", "a", 2),
    "v2.b32": ("unsigned a, b", "{%0, %1}", "ab", 2),
    "v2.b64": ("unsigned long long a, b", "{%0, %1}", "ab", 4),
}


@pytest.mark.parametrize("window", [".global", ""])
def test_strong_loads_and_stores_move_the_very_bits(window: str) -> None:
    opcodes, body = [], ""
    for load, store in ORDERS:
        for form, (declared, many, names, _) in FORMS.items():
            code, where = "l" if "long" in declared else "r", len(names)
            opcodes += [f"ld.{load}{window}.{form}", f"st.{store}{window}.{form}"]
            to = ", ".join(f'"={code}"({n})' for n in names)
            body += f"""{{ {declared}; to += 128;
  asm volatile("{opcodes[-2]} {many}, [%{where}];" : {to} : "l"(from) : "memory");
  asm volatile("{opcodes[-1]} [%{where}], {many};" :: {to.replace("=", "")}, "l"(to) : "memory"); }}
"""
    source = f"""extern "C" __global__ void kernel(unsigned* o) {{
  unsigned *from = o + 4 * threadIdx.x, *to = from;
{body}}}"""
    given = np.random.default_rng(3).integers(0, 2**32, (32, 4), np.uint32)
    given[0] = 0xFFFFFFFF, 0x7F800001, 0x80000000, 0xFF812345  # signalling NaN, minus zero
    more = np.zeros((len(opcodes) // 2, 32, 4), np.uint32)
    (got,) = cudacase.run(source, [np.concatenate([given[None], more])], capability=HOPPER).arrays
    assert all(f"{opcode} " in cudacase.ptx(source, HOPPER) for opcode in opcodes)
    for at, (_, _, _, words) in enumerate([*FORMS.values()] * len(ORDERS)):
        assert np.array_equal(got[at + 1, :, :words], given[:, :words])
        assert not got[at + 1, :, words:].any()


def test_a_counter_wraps_to_zero() -> None:
    source = """__device__ unsigned count = 3;
extern "C" __global__ void kernel(unsigned* o) {
  o[blockIdx.x * blockDim.x + threadIdx.x] = atomicInc(&count, 4);
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("red.release.gpu.global.inc.u32 [%0], 9;" :: "l"(&count) : "memory");
  if (threadIdx.x == 0)
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], 2;"
                 : "=r"(o[64 + blockIdx.x]) : "l"(&count) : "memory");
}"""
    got = launched(source, 66, block=32)
    counted = (3 + np.arange(64)) % 5
    assert sorted(got[:64]) == sorted(counted)
    # 67 % 5 = 2; both blocks add one: 4; the first finds it above 2 and leaves 0.
    assert got[64:].tolist() == [4, 0]


# -- what orders -----------------------------------------------------------------------------------

HANDED = """__device__ unsigned flag;
__device__ int data[64];
extern "C" __global__ void kernel(unsigned* o) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 5 + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) { TELL }
  } else {
    if (threadIdx.x == 0) { unsigned v; do { LOOK } while (v != 1); }
    __syncthreads();
    o[threadIdx.x] = data[threadIdx.x];
  }
}"""
_MEMORY = ' : "memory");'
TELLS = {
    "st.release": f'asm("st.release.gpu.global.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "red.release": f'asm("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "atom.acq_rel": 'unsigned old; asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"'
    f' : "=r"(old) : "l"(&flag){_MEMORY}',
    "fence, st.relaxed": "__threadfence(); "
    f'asm("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "fence, atomicInc": "__threadfence(); atomicInc(&flag, 7);",
    "st.relaxed": f'asm("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "st.volatile": "*(volatile unsigned*)&flag = 1;",
    "atomicInc": "atomicInc(&flag, 7);",
    "plain": "flag = 1;",
}
LOOKS = {
    form: f'asm volatile("ld.{form}.global.u32 %0, [%1];" : "=r"(v) : "l"(&flag){_MEMORY}'
    for form in ("acquire.gpu", "relaxed.gpu", "volatile")
}


def handed(tell: str, look: str) -> str:
    return HANDED.replace("TELL", TELLS[tell]).replace("LOOK", LOOKS[look])


@pytest.mark.parametrize(
    "tell",
    ["st.release", "red.release", "atom.acq_rel", "fence, st.relaxed", "fence, atomicInc"],
)
def test_what_is_released_may_be_read(tell: str) -> None:
    got = launched(handed(tell, "acquire.gpu"), 64, sanitize=True)
    assert got.tolist() == [5 + t for t in range(64)]


@pytest.mark.parametrize(
    ("tell", "look", "what"),
    [
        ("st.relaxed", "acquire.gpu", "data"),
        ("st.relaxed", "relaxed.gpu", "data"),
        ("st.volatile", "volatile", "data"),
        ("atomicInc", "acquire.gpu", "data"),
        ("plain", "acquire.gpu", "flag"),
    ],
)
def test_what_is_not_released_races(tell: str, look: str, what: str) -> None:
    with pytest.raises(FaultError, match=f"race .* of {what}: ") as told:
        launched(handed(tell, look), 64, sanitize=True)
    assert told.value.details["fault"] == "race"


LAST = """__device__ unsigned count;
__device__ volatile unsigned part[4];
extern "C" __global__ void kernel(unsigned* o) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = 10 + blockIdx.x;
    __threadfence();
    last = atomicInc(&count, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (WHO && threadIdx.x == 0) {
    o[0] = part[0] + part[1];
    count = 0;
  }
}"""


@pytest.mark.parametrize("who", ["last", "blockIdx.x == 0"])
def test_the_last_block_sums_up_and_sets_the_counter_back(who: str) -> None:
    """The example of the CUDA C++ Programming Guide, "Memory Fence Functions"."""
    source = LAST.replace("WHO", who)
    if who == "last":
        assert launched(source, 1, sanitize=True).tolist() == [21]
        return
    with pytest.raises(FaultError, match="race"):
        launched(source, 1, sanitize=True)
