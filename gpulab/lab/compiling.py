"""Compiles what rows need ahead of time, on all cores.

NVRTC releases the interpreter lock, so CUDA C++ is compiled in threads. Numba does not, and takes
seconds a kernel: while a card would have to wait for it, other processes compile its kernels into
the cache, where this process finds them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from multiprocessing.process import BaseProcess
from types import TracebackType

from gpulab import registry
from gpulab.errors import GpulabError
from gpulab.formats import threads
from gpulab.registry import Capability, Case, Dims, NumbaBuild, Param, RawBuild, Variant
from gpulab.runtime import assembly, cache
from gpulab.runtime.cache import Store
from gpulab.runtime.device import Device
from gpulab.runtime.toolkit import Toolkit

FEWEST_CORES = 3
"""With fewer cores, processes that import Numba once more would only slow this one down."""
Request = tuple[RawBuild | NumbaBuild, tuple[Param, ...]]
_Name = tuple[str, str, str, Variant]


def requests(
    case: Case, target: Capability, multiprocessors: int | None, dims: Dims
) -> Iterator[Request]:
    """What a row compiles, if it can run on the target: its steps, then its own kernel."""
    spec, variant = case.on(multiprocessors).spec, case.variant
    if spec.build is None:
        return
    for step in spec.steps(variant, target, dims):
        yield step.build, step.params
    own = spec.own_params or spec.params
    yield spec.build(variant, target, dims), own(variant)


class Ahead:
    """Compilations that run in the background; a context manager that stops them on exit.

    Errors are not reported here: the row's own build runs into them again.

    Args:
        device: device to compile for.
        processes: number of processes that compile Numba kernels. None: one for each core if the
            device is a card and there are at least ``FEWEST_CORES`` cores, else none.
    """

    def __init__(self, device: Device, processes: int | None = None) -> None:
        cores = threads.cores()
        if processes is None:
            processes = cores if device.kind == "cuda" and cores >= FEWEST_CORES else 0
        self.device, self.processes = device, processes
        self._threads = ThreadPoolExecutor(cores)
        self._others: Executor | None = None
        self._workers: set[BaseProcess] = set()
        self._rows: dict[Hashable, list[Future[None]]] = {}
        self._numba: dict[Hashable, Future[None]] = {}

    def submit(self, cases: Sequence[Case], dims: Dims) -> None:
        """Start to compile rows at a size; rows that were submitted before are left alone."""
        device = self.device
        for case in cases:
            if _key(case, dims) in self._rows:
                continue
            begun = self._rows[_key(case, dims)] = []
            if case.refusal(device.target, device.kind, dims) is not None:
                continue
            with contextlib.suppress(GpulabError):
                for request, params in requests(case, device.target, device.multiprocessors, dims):
                    if isinstance(request, RawBuild):
                        begun.append(self._threads.submit(self._compile, request, params))
                    elif self.processes:
                        with contextlib.suppress(BrokenExecutor):  # compiled here instead
                            begun.append(self._elsewhere(case, dims, request.key, params))

    def wait(self, case: Case, dims: Dims) -> None:
        """Wait for the compilations of a row at a size."""
        for future in self._rows.get(_key(case, dims), ()):
            with contextlib.suppress(Exception):  # a process that died: compiled here instead
                future.result()

    def _compile(self, request: RawBuild, params: tuple[Param, ...]) -> None:
        with contextlib.suppress(GpulabError):
            assembly.prepare(request, params, self.device.target, kit=self.device.kit)

    def _elsewhere(
        self, case: Case, dims: Dims, key: str, params: tuple[Param, ...]
    ) -> Future[None]:
        """Compile a row's Numba kernels in another process, a kernel that several rows or sizes
        share only once."""
        known = (key, params)
        if known not in self._numba:
            if self._others is None:
                spawn = multiprocessing.get_context("spawn")  # threads and a card do not fork
                self._others = ProcessPoolExecutor(self.processes, spawn)
            device, spec = self.device, case.spec
            name = (spec.op, spec.backend, spec.name, case.variant)
            before = set(multiprocessing.active_children())
            with _interrupts_held():
                self._numba[known] = self._others.submit(
                    compile_numba, name, dict(dims), device.target, device.multiprocessors,
                    device.kit, cache.default_store(),
                )  # fmt: skip
            self._workers |= set(multiprocessing.active_children()) - before
        return self._numba[known]

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Start nothing more, drop what has not been started, and end the other processes."""
        for pool in (self._threads, self._others):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:  # what they compile, nobody waits for
            worker.kill()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits meanwhile. A process that is started here never hears it.

    A terminal sends it to every process, and the parent alone reports it. What a process inherits
    holds from its first instruction on, before any handler of its own could.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _key(case: Case, dims: Dims) -> Hashable:
    return case, tuple(sorted(dims.items()))


def compile_numba(
    name: _Name,
    dims: dict[str, int],
    target: Capability,
    multiprocessors: int | None,
    kit: Toolkit,
    store: Store,
) -> None:
    """Compile the Numba kernels of a row into a store: the work of one of the other processes.

    Args:
        name: op, backend and kernel of the row, and its variant.
        dims: dims of the operation.
        target: capability to compile for.
        multiprocessors: number of multiprocessors of the card.
        kit: the toolchain.
        store: where the compiled code is kept.
    """
    op, backend, kernel, variant = name
    (spec,) = (s for s in registry.specs(op) if (s.backend, s.name) == (backend, kernel))
    for request, params in requests(Case(spec, variant), target, multiprocessors, dims):
        if isinstance(request, NumbaBuild):
            with contextlib.suppress(GpulabError):
                assembly.prepare(request, params, target, kit=kit, store=store)


def compile_ahead(cases: Sequence[Case], device: Device, dims: Dims) -> None:
    """Compile what rows need at a size into the cache, and wait until it is done."""
    with Ahead(device) as ahead:
        ahead.submit(cases, dims)
        for case in cases:
            ahead.wait(case, dims)
