"""A CuPy without a card: host memory, launches that are recorded, errors on demand."""

from types import SimpleNamespace

import numpy as np

from gpulab.runtime.cuda_context import Connection
from gpulab.runtime.driver import Card, Driver


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class Stream:
    def __init__(self, cupy):
        self.cupy, self.ptr, self.used = cupy, 4096, False

    def use(self):
        self.used = True

    def synchronize(self):
        self.cupy.raise_pending()

    def __enter__(self):
        self.cupy.streams.append(self)
        return self

    def __exit__(self, *_):
        self.cupy.streams.pop()


class Memory:
    def __init__(self, array, offset=0):
        self.array, self.offset = array, offset

    def __add__(self, offset):
        return Memory(self.array, self.offset + offset)

    def copy_from_device_async(self, other, nbytes, stream):
        mine, theirs = (m.array.view(np.uint8).reshape(-1)[m.offset :] for m in (self, other))
        mine[:nbytes] = theirs[:nbytes].copy()

    @property
    def ptr(self):
        return self.array.ctypes.data

    def memset_async(self, value, nbytes, stream):
        self.array.view(np.uint8).reshape(-1)[:nbytes] = value


class Array:
    def __init__(self, cupy, shape, dtype):
        self.cupy = cupy
        self.array = np.zeros(shape, dtype)
        cupy.allocate(self.array.nbytes)
        self.data = Memory(self.array)

    def _of(self, array):
        part = object.__new__(Array)
        part.cupy, part.array = self.cupy, array
        part.data = Memory(part.array)
        return part

    def __getitem__(self, rows):
        return self._of(self.array[rows])

    def reshape(self, *shape):
        return self._of(self.array.reshape(*shape))

    def view(self, dtype):
        return self.array.view(dtype)

    def set(self, host, stream=None):
        self.array[...] = host

    def get(self, stream=None):
        self.cupy.raise_pending()
        return self.array.copy()


class Kernel:
    num_regs = 8
    kernel = SimpleNamespace(ptr=7)  # the CUfunction

    def __init__(self, cupy, name):
        self.cupy, self.name = cupy, name
        self.max_dynamic_shared_size_bytes = 47 * 1024  # 48 KiB less the static part

    def __call__(self, grid, block, args, shared_mem=0):
        assert self.cupy.streams, "launched outside the device's stream"
        if self.cupy.refuse:
            raise self.cupy.refuse
        self.cupy.launches.append((self.name, grid, block, args, shared_mem))


class FakeCupy:
    """As much of CuPy as the device uses.

    Args:
        cuda: the CUDA version it is built for, as 13020.
        total: bytes of memory of the card.
    """

    __version__ = "14.2.0"

    def __init__(self, cuda=13020, total=1 << 20):
        self.total, self.used = total, 0
        self.pending = None
        self.refuse = None
        self.load_error = None
        self.launches, self.streams, self.loaded, self.freed = [], [], [], 0
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            runtimeGetVersion=lambda: cuda,
            free=lambda pointer: None,
            memGetInfo=lambda: (self.total - self.used, self.total),
            deviceSynchronize=self.raise_pending,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Stream=lambda non_blocking: Stream(self),
            Device=lambda index: SimpleNamespace(
                use=lambda: None, attributes={"MultiProcessorCount": 132}
            ),
        )

    def allocate(self, nbytes):
        if self.used + nbytes > self.total:
            raise OutOfMemoryError("out of memory")
        self.used += nbytes

    def raise_pending(self):
        if self.pending is not None:
            raise self.pending

    def ndarray(self, shape, dtype):
        return Array(self, shape, dtype)

    def get_default_memory_pool(self):
        def free_all_blocks():
            self.freed += 1

        return SimpleNamespace(free_all_blocks=free_all_blocks)

    def RawModule(self, *, path):
        def get_function(name):
            if self.load_error:
                raise self.load_error
            self.loaded.append((path, name))
            return Kernel(self, name)

        return SimpleNamespace(get_function=get_function)


HOPPER = Card(0, "NVIDIA H200", (9, 0))


def driver(cuda=(13, 0), cards=(HOPPER,), problem=None, release="580.65.06"):
    return Driver(cuda, release, tuple(cards), problem)


def connection(cupy, **facts):
    made = driver(**facts)
    return Connection(cupy, made, made.usable())
