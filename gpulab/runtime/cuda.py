"""The card, through CuPy: memory, cubins loaded from disk, launches on a stream of our own.

Everything runs on one non-blocking stream, which all devices of the process share. It is made
CuPy's current stream, so that library calls use it too. CuPy's compiler is never used: it would
flush float32 subnormals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gpulab import arch
from gpulab.errors import BuildError, FaultError
from gpulab.registry import LaunchPlan, NumbaBuild, Param
from gpulab.runtime import (
    assembly,
    card_arrays,
    cuda_errors,
    nvrtc,
    packing,
    residency,
    resources,
    tensor_map,
    toolkit,
)
from gpulab.runtime.cache import Store
from gpulab.runtime.checks import check_host_array
from gpulab.runtime.cuda_context import Connection, connect
from gpulab.runtime.device import (
    POISONS,
    Build,
    Device,
    DeviceArray,
    Function,
    LaunchReport,
)
from gpulab.runtime.numba_launch import NumbaKernel
from gpulab.runtime.targets import check_target
from gpulab.runtime.toolkit import Capability, Toolkit

_UNASKED_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that needs no function attribute; more must be asked for."""
SENT_BYTES = 1 << 28
"""Most bytes that are uploaded at a time to compare an array with."""

_STREAMS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _stream_of(cupy: Any) -> Any:
    """The stream of the process: two devices (another target) work in one order."""
    if cupy not in _STREAMS:
        _STREAMS[cupy] = cupy.cuda.Stream(non_blocking=True)
    return _STREAMS[cupy]


class CudaDevice(Device):
    """The first usable card.

    Args:
        target: compile for this lower capability and assemble that PTX for the card, as if an
            older card's code ran here.
        kit: the compiler; by default the newest whose cubins the driver loads.
        store: the compile cache; the user's by default.
        numba_launch: launch the kernels of a ``NumbaBuild`` through Numba; False: like any other.
        reason: why the lab chose it.
        connection: a card already connected to.

    Raises:
        DeviceMissingError: no usable card; see ``cuda_context.connect``.
        UsageError: a target above the card's capability.
    """

    kind = "cuda"

    def __init__(
        self,
        *,
        target: Capability | None = None,
        kit: Toolkit | None = None,
        store: Store | None = None,
        numba_launch: bool = True,
        reason: str = "",
        connection: Connection | None = None,
    ) -> None:
        self.connection = connection or connect()
        card = self.connection.card
        self.capability = card.capability
        self.target = check_target(target, card.capability)
        self.name = card.name
        if self.target != self.capability:
            self.name += f" running {arch.get(self.target).target} code"
        self.reason = reason
        self.cupy: Any = self.connection.cupy
        self.kit = kit or toolkit.find(self.connection.driver.cuda)
        self.driver = self.connection.driver.release or self.connection.driver.label
        self.stream: Any = _stream_of(self.cupy)
        self.stream.use()
        self._store = store
        self._numba_launch = numba_launch
        self._waiting_for = "the card"
        self._dead: str | None = None

    @contextlib.contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Turn CuPy's exceptions into the lab's; remember when the context has died.

        Raises:
            FaultError: an illegal operation, now or before.
        """
        if self._dead is not None:
            raise FaultError(f"{doing}: {self._dead}", fault="context_dead")
        try:
            yield
        except Exception as error:
            if not cuda_errors.is_cuda(error):
                raise
            translated = cuda_errors.translate(error, doing)
            if cuda_errors.kills_context(cuda_errors.status(error) or 0):
                self._dead = f"{cuda_errors.DEAD} (first error: {translated.message})"
            raise translated from None

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> DeviceArray:
        out_of_memory = self.cupy.cuda.memory.OutOfMemoryError
        with self.guard(f"allocating {name or 'an array'}"):
            try:
                handle = self.cupy.ndarray(shape, dtype)
            except out_of_memory:  # once more, without the blocks that CuPy's pool keeps for reuse
                self.cupy.get_default_memory_pool().free_all_blocks()
                try:
                    handle = self.cupy.ndarray(shape, dtype)
                except out_of_memory:
                    needed = DeviceArray(shape, dtype, None).nbytes
                    free, total = self.cupy.cuda.runtime.memGetInfo()
                    raise cuda_errors.out_of_memory(needed, free, total, name) from None
        return DeviceArray(shape, dtype, handle, name)

    def upload(self, host: NDArray[Any], name: str = "", rows: int | None = None) -> DeviceArray:
        """Copy a C-contiguous host array to the card; rows are repeated there."""
        check_host_array(host, name)
        shape = host.shape if rows is None else (rows, *host.shape[1:])
        array = self._allocate(shape, host.dtype, name)
        sent = array if shape == host.shape else self.part(array, 0, len(host))
        with self.guard(f"copying {name or 'an array'} to the card"):
            sent.handle.set(host, stream=self.stream)
            memory, filled = array.handle.data, host.nbytes
            while filled < array.nbytes:  # whole rows, twice as many each time
                size = min(filled, array.nbytes - filled)
                (memory + filled).copy_from_device_async(memory, size, self.stream)
                filled += size
            self.stream.synchronize()
        return array

    def part(self, array: DeviceArray, first: int, last: int) -> DeviceArray:
        """Some rows, in the same memory."""
        handle = array.handle[first:last]
        return DeviceArray((last - first, *array.shape[1:]), array.dtype, handle, array.name)

    def empty(
        self, shape: Sequence[int], dtype: np.dtype[Any], poison: int = POISONS[0], name: str = ""
    ) -> DeviceArray:
        """Allocate an output whose every byte is ``poison``."""
        array = self._allocate(tuple(shape), np.dtype(dtype), name)
        self.refill(array, poison)
        return array

    def refill(self, array: DeviceArray, poison: int) -> None:
        """Queue filling the array with ``poison``."""
        if array.nbytes:
            with self.guard(f"filling {array.name or 'an array'}"):
                array.handle.data.memset_async(poison, array.nbytes, self.stream)

    def download(self, array: DeviceArray) -> NDArray[Any]:
        """Copy back to a new host array, after everything launched."""
        with self.guard(f"waiting for {self._waiting_for}"):
            host = np.asarray(array.handle.get(stream=self.stream))
            self.stream.synchronize()
        return host

    def equals(self, array: DeviceArray, host: NDArray[Any]) -> bool:
        """See ``Device``; ``host`` is uploaded piece by piece, and nothing is downloaded."""
        mine, wanted = card_arrays.flat(array), host.reshape(-1)
        size = max(1, SENT_BYTES // host.itemsize)
        parts = ((at, min(at + size, len(wanted))) for at in range(0, len(wanted), size))
        return all(
            self.same(self.part(mine, *part), self.upload(wanted[slice(*part)], array.name))
            for part in parts
        )

    def same(self, one: DeviceArray, other: DeviceArray) -> bool:
        """See ``Device``; compared on the card."""
        with self.guard(f"waiting for {self._waiting_for}"):
            return card_arrays.same(one, other)

    def free(self, *arrays: DeviceArray) -> None:
        """The memory returns to the pool when the last reference to the array goes."""

    def build(self, request: Build, params: tuple[Param, ...]) -> Function:
        """Compile for the target; assemble for the card; load."""
        code = assembly.prepare(request, params, self.target, kit=self.kit, store=self._store)
        path, used = code.cubin_path, code.resources
        if path is None or self.target != self.capability:
            path, log = assembly.assemble(
                code.ptx,
                nvrtc.target_name(self.kit, self.capability),
                major=self.kit.version[0],
                contract=code.contract,
                store=self._store,
                name=code.label,
            )
            used = resources.parse(log, code.entry, code.ptx)
        if code.numba is not None and self._numba_launch and isinstance(request, NumbaBuild):
            with self.guard(f"loading {code.label}"):
                kernel: Any = NumbaKernel(code.numba, path, int(self.stream.ptr))
        else:
            kernel = self._load(code, path)
        return Function(
            entry=code.label,
            params=params,
            handle=(code, kernel),
            build=request,
            resources=used,
            ptx=code.ptx,
        )

    def _load(self, code: assembly.Code, path: Path) -> Any:
        with self.guard(f"loading {code.label}"):
            try:
                kernel = self.cupy.RawModule(path=str(path)).get_function(code.entry)
                _ = kernel.num_regs  # loads the module now
                return kernel
            except self.cupy.cuda.driver.CUDADriverError as error:
                if cuda_errors.kills_context(cuda_errors.status(error) or 0):
                    raise
                version = "{}.{}".format(*self.kit.version)
                raise BuildError(
                    f"{code.label}: {self.connection.driver.label} does not load the cubin of "
                    f"CUDA {version}: {error}",
                    fix="update the NVIDIA driver, or install an older NVRTC: "
                    f"pip install 'nvidia-cuda-nvrtc<{version}'",
                ) from None

    @cached_property
    def multiprocessors(self) -> int:  # type: ignore[override]
        """Of the card."""
        card = self.cupy.cuda.Device(self.connection.card.index)
        return int(card.attributes["MultiProcessorCount"])

    def _grid(self, plan: LaunchPlan, kernel: Any) -> tuple[int, int, int]:
        """What to launch; of a persistent kernel, what the card holds at once."""
        if plan.cluster > 1:
            residency.allow_cluster(kernel.kernel.ptr, plan)
        x = residency.blocks_along_x(
            plan,
            self.multiprocessors,
            lambda: residency.clusters_at_once(kernel.kernel.ptr, plan),
        )
        return (x, *plan.grid[1:])

    def synchronize(self) -> None:
        """Wait for the whole card, so that nothing hides on another stream."""
        with self.guard(f"waiting for {self._waiting_for}"):
            self.cupy.cuda.runtime.deviceSynchronize()

    def _bind(
        self, function: Function, plan: LaunchPlan, args: Sequence[Any]
    ) -> Callable[[], LaunchReport]:
        code, kernel = function.handle
        static = function.resources.shared_bytes if function.resources else 0
        large = plan.shared_bytes + static > _UNASKED_SHARED_BYTES
        if isinstance(kernel, NumbaKernel):
            if not large and plan.cluster == 1:
                plan = replace(plan, grid=self._grid(plan, None))
                start = kernel.bind(plan, [getattr(a, "handle", a) for a in args])
                return lambda: self._run(function.entry, start)
            # Numba's launch cannot ask for more, nor its kernel be asked how many clusters fit.
            kernel = self._load(code, kernel.cubin)
        maps = {box.param: partial(tensor_map.of_array, box=box) for box in plan.maps}
        packed = packing.pack(function.params, args, card_arrays.address, code.abi, maps)
        values = tuple(card_arrays.by_value(part) for part in packed)
        if large:
            with self.guard(f"asking for {plan.shared_bytes} bytes of shared memory"):
                kernel.max_dynamic_shared_size_bytes = max(
                    plan.shared_bytes, kernel.max_dynamic_shared_size_bytes
                )
        grid = self._grid(plan, kernel)

        def launch(arrays: Sequence[Any] = tuple(args)) -> LaunchReport:
            # The default keeps the arrays alive for as long as this can be called.
            return self._run(
                function.entry,
                lambda: kernel(grid, plan.block, values, shared_mem=plan.shared_bytes),
            )

        return launch

    def bind_library(
        self, label: str, start: Callable[[], None], arrays: Sequence[DeviceArray]
    ) -> Callable[[], LaunchReport]:
        """A library call on the device's stream."""

        def launch(arrays: Sequence[DeviceArray] = tuple(arrays)) -> LaunchReport:
            # The default keeps the arrays alive for as long as this can be called.
            return self._run(label, start)

        return launch

    def _run(self, entry: str, start: Callable[[], None]) -> LaunchReport:
        with self.guard(f"launching {entry}"), self.stream:
            start()
        self._waiting_for = entry
        return LaunchReport()
