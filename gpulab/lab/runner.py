"""One kernel on one device, as the plain function that the gates call.

The runner owns allocation, upload, poison, launch and download. A kernel sees no buffers but those
of its parameter list, and the reference never reaches the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab import ops
from gpulab.errors import UsageError
from gpulab.numerics.repeat import repeated
from gpulab.ops.base import Op, RunResult
from gpulab.registry import Case, Dims, LaunchPlan, Param
from gpulab.runtime.device import POISONS, Device, DeviceArray, Function, LaunchReport


def _shape(param: Param, dims: Dims) -> tuple[int, ...]:
    return tuple(dims[d] for d in param.dims)


class KernelRunner:
    """Runs one case with one set of dims on one device.

    Args:
        case: kernel and variant.
        device: where it runs.
        dims: the op's dims by name.
        op: the operation where it is not the registered one (another eps); None: the registered.

    Raises:
        BuildError: it does not compile.
        UsageError: the case cannot run there (``Case.refusal`` says why beforehand).
    """

    def __init__(self, case: Case, device: Device, dims: Dims, op: Op | None = None) -> None:
        self.op = op or ops.get(case.spec.op)
        case = case.on(device.multiprocessors)
        self.case, self.device, self.dims = case, device, dict(dims)
        spec, variant = case.spec, case.variant
        refusal = case.refusal(device.target, device.kind, dims)
        if refusal is not None:
            raise UsageError(f"{case.label} cannot run on {device.name}: {refusal}")
        self.params = spec.params(variant)
        self.function: Function | None = None
        self.plan: LaunchPlan | None = None
        self.steps = [
            (step, device.build(step.build, step.params))
            for step in spec.steps(variant, device.target, dims)
        ]
        self.work: dict[str, DeviceArray] = {}
        if spec.build is not None and spec.plan is not None:
            own = spec.own_params(variant) if spec.own_params is not None else self.params
            self.function = device.build(spec.build(variant, device.target, dims), own)
            self.plan = spec.plan(variant, device.target, dims)
        self.last_report = LaunchReport()

    def upload(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, DeviceArray]:
        """Device copies of the inputs, by parameter name."""
        return {
            p.name: self._upload(p, np.ascontiguousarray(inputs[p.name]))
            for p in self.params
            if p.role == "in"
        }

    def _upload(self, param: Param, host: NDArray[Any]) -> DeviceArray:
        shape = _shape(param, self.dims)
        repeats = host.shape[1:] == shape[1:] and 0 < len(host) < shape[0]
        return self.device.upload(host, param.name, shape[0] if repeats else None)

    def outputs(self, poison: int = POISONS[0]) -> dict[str, DeviceArray]:
        """Poisoned output arrays, by parameter name."""
        return {
            p.name: self.device.empty(_shape(p, self.dims), p.dtype, poison, p.name)
            for p in self.params
            if p.role == "out"
        }

    def bind(self, arrays: Mapping[str, DeviceArray]) -> Callable[[], LaunchReport]:
        """Check the arguments once, and return what launches the steps and the kernel."""
        *before, kernel = self.bind_parts(arrays)
        if not before:
            return kernel

        def launch() -> LaunchReport:
            for start in before:
                start()
            return kernel()

        return launch

    def bind_parts(self, arrays: Mapping[str, DeviceArray]) -> list[Callable[[], LaunchReport]]:
        """What launches each step and, as the last entry, the kernel alone, which then works on
        what the steps wrote last."""
        everything = {**arrays, **self._working_memory()}
        starts = [self._bind_one(function, step.plan, everything) for step, function in self.steps]
        if self.function is not None and self.plan is not None:
            return [*starts, self._bind_one(self.function, self.plan, everything)]
        return [*starts, self._bind_library(everything)]

    def _working_memory(self) -> dict[str, DeviceArray]:
        """What the steps write: allocated once, and kept as long as the runner lives."""
        for step, _ in self.steps:
            for p in step.params:
                if p.role == "out" and p.name not in self.work:
                    shape = _shape(p, self.dims)
                    self.work[p.name] = self.device.empty(shape, p.dtype, name=p.name)
        return self.work

    def _bind_one(
        self, function: Function, plan: LaunchPlan, arrays: Mapping[str, DeviceArray]
    ) -> Callable[[], LaunchReport]:
        variant = self.case.variant
        values = {**self.dims, **self.op.scalars(variant, self.dims)}
        args: list[DeviceArray | int | float] = [
            arrays[p.name] if p.role in ("in", "out") else values[p.name] for p in function.params
        ]
        return self.device.bind(function, plan, args)

    def _bind_library(self, arrays: Mapping[str, DeviceArray]) -> Callable[[], LaunchReport]:
        run, handles = self.case.spec.run, {name: a.handle for name, a in arrays.items()}
        if run is None:
            raise UsageError(f"{self.case.label} declares neither build and plan nor run")
        return self.device.bind_library(
            self.case.label, lambda: run(self.case.variant, handles), tuple(arrays.values())
        )

    def __call__(
        self, inputs: Mapping[str, NDArray[Any]], *, poison: int = POISONS[0]
    ) -> RunResult:
        """Run once on fresh memory and download the results.

        Args:
            inputs: stored arrays by parameter name; of an input whose rows repeat, only the
                distinct rows.
            poison: byte that fills the outputs beforehand.

        Returns:
            Outputs by name (of an output that repeats as the inputs do, only the distinct rows),
            and whether all inputs are unchanged, bit for bit.
        """
        sent = self.upload(inputs)
        out = self.outputs(poison)
        try:
            self.last_report = self.bind({**sent, **out})()
            self.device.synchronize()
            distinct = self._distinct(inputs)
            results, stands_for = {}, {}
            for p in self.params:
                if p.role == "out":
                    array, step = out[p.name], distinct.get(p.dims[0])
                    if step is not None and self.device.repeats(array, step):
                        stands_for[p.name] = array.shape[0]
                        array = self.device.part(array, 0, step)
                    results[p.name] = self.device.download(array)
            unchanged = all(self.device.holds(a, inputs[name]) for name, a in sent.items())
        finally:
            self.device.free(*sent.values(), *out.values())
        return RunResult(results, unchanged, stands_for)

    def _distinct(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        """Number of distinct rows by dim, for dims whose inputs all repeat that many rows."""
        counts: dict[str, set[int]] = {}
        for p in self.params:
            if p.role == "in":
                counts.setdefault(p.dims[0], set()).add(len(inputs[p.name]))
        return {
            dim: min(found)
            for dim, found in counts.items()
            if len(found) == 1 and min(found) < self.dims[dim]
        }

    def whole(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The inputs with their rows repeated to the full dims."""
        return {
            p.name: repeated(inputs[p.name], self.dims[p.dims[0]])
            for p in self.params
            if p.role == "in"
        }
