"""Proof that a device multiplies a number format: one product, executed and compared.

Each format gets two products of one warp. The first has small integers, for which every order of
summation gives the same bits: it must be the mathematical result, whatever the arithmetic. The
second has random values and is compared, bit for bit, with ``gpulab.numerics.tensorcore``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab import arch
from gpulab.errors import BuildError
from gpulab.formats import Format, decode, encode, get
from gpulab.formats.packing import to_containers
from gpulab.formats.paths import Path
from gpulab.numerics import tensorcore
from gpulab.registry import Capability, LaunchPlan, Param, RawBuild
from gpulab.runtime.device import Device

Status = Literal["executed", "emulated", "mismatch", "not run"]

M, N = 16, 8
STEP_BYTES = 32
"""The probe kernel multiplies 32 bytes of k: one instruction, or two of half the depth."""


@dataclass(frozen=True)
class ProbeResult:
    """What one product showed.

    Args:
        format: canonical name.
        instruction: what was executed, or would have been.
        status: ``executed`` on a card or ``emulated``, with the right result in both products;
            ``mismatch``: executed with a wrong one; ``not run``.
        reason: one sentence.
        outputs: elements compared with the model; 0 where there is no model of this capability.
        different: how many of them differ.
        evidence: what the model rests on (``recorded``, ``public``, ``assumed``), or None.
        first: index, got and wanted bits of the first difference, or None.
    """

    format: str
    instruction: str
    status: Status
    reason: str
    outputs: int = 0
    different: int = 0
    evidence: str | None = None
    first: Mapping[str, Any] | None = None

    @property
    def proven(self) -> bool:
        """Whether the device multiplied the format as it should."""
        return self.status in ("executed", "emulated")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-able data."""
        return asdict(self)


Multiply = Callable[[NDArray[Any], NDArray[Any], NDArray[np.float32]], NDArray[np.float32]]
"""(A (16, k), B (k, 8), C (16, 8)) in storage types -> D (16, 8): one product on a device."""


def depth(row: Format) -> int:
    """K of the probe's product: 32 bytes of the format."""
    return STEP_BYTES // row.storage.itemsize


def exact_operands(row: Format) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """Small integers that every format holds; all partial sums are exact in any accumulator."""
    rng, k = np.random.default_rng(1), depth(row)
    a, b = rng.integers(-2, 3, (M, k)), rng.integers(-2, 3, (k, N))
    return encode(row, a), encode(row, b), rng.integers(-8, 9, (M, N)).astype(np.float32)


def random_operands(row: Format) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """Normal values, so that alignment, truncation and the addend's place all show."""
    rng, k = np.random.default_rng(2), depth(row)
    a, b = rng.standard_normal((M, k)), rng.standard_normal((k, N))
    return encode(row, a), encode(row, b), rng.standard_normal((M, N)).astype(np.float32)


def compare(
    row: Format, path: Path, capability: Capability, kind: str, multiply: Multiply
) -> ProbeResult:
    """Run both products through ``multiply`` and judge them.

    Args:
        row: the format.
        path: the instruction that ``multiply`` carries out.
        capability: of the device; chooses the model.
        kind: ``cuda`` or ``emulated``.
        multiply: one product on the device.
    """
    a, b, c = exact_operands(row)
    right = decode(row, a) @ decode(row, b) + c
    wrong = np.argwhere(multiply(a, b, c).astype(np.float64) != right)
    if len(wrong):
        return ProbeResult(
            row.name,
            path.instruction,
            "mismatch",
            f"{len(wrong)} of {M * N} elements of a product of small integers are wrong",
        )
    status: Status = "emulated" if kind == "emulated" else "executed"
    if capability not in tensorcore.CAPABILITIES:
        reason = f"product of small integers right; no model of {arch.dotted(capability)}"
        return ProbeResult(row.name, path.instruction, status, reason)
    model = tensorcore.model(path.instruction, capability)
    a, b, c = random_operands(row)
    got = multiply(a, b, c).view(np.uint32)
    want = tensorcore.mma(a, b, c.view(np.uint32), path.instruction, capability)
    bad = np.argwhere(got != want)
    if len(bad) == 0:
        reason = f"{status}: {M * N} of {M * N} results equal the model bit for bit"
        return ProbeResult(row.name, path.instruction, status, reason, M * N, 0, model.verified)
    index = tuple(int(i) for i in bad[0])
    first = {"index": list(index), "got": f"{got[index]:#010x}", "want": f"{want[index]:#010x}"}
    reason = f"{len(bad)} of {M * N} results differ from the model, which is {model.verified}"
    # A model without hardware behind it is no evidence against the card.
    verdict: Status = status if model.verified == "assumed" and kind == "cuda" else "mismatch"
    return ProbeResult(
        row.name, path.instruction, verdict, reason, M * N, len(bad), model.verified, first
    )


def run_probes(device: Device, formats: tuple[str, ...]) -> dict[str, ProbeResult]:
    """One result a format, on the device; formats without mma.sync there are left out.

    Raises:
        FaultError: the probe kernel did something illegal.
        DeviceMissingError: the device went away.
    """
    results = {}
    for name in formats:
        row = get(name)
        path = row.path("mma.sync", device.capability)
        if path is None:
            continue
        try:
            multiply = _on_device(device, row, path)
        except BuildError as error:
            line = error.message.splitlines()[0]
            results[name] = ProbeResult(
                name, path.instruction, "not run", f"does not build: {line}"
            )
            continue
        results[name] = compare(row, path, device.capability, device.kind, multiply)
    return results


def build_request(row: Format, path: Path) -> RawBuild:
    """The probe kernel for one instruction."""
    return RawBuild(
        source="probe/formats.cu",
        entry=f"formats_probe<ptx::{row.ptx}, {path.k}>",
        feature_target=path.target.endswith("a"),
    )


def _on_device(device: Device, row: Format, path: Path) -> Multiply:
    params = (
        Param("a", "in", row.name, ("m", "k")),
        Param("b", "in", row.name, ("n", "k")),
        Param("c", "in", "fp32", ("m", "n")),
        Param("d", "out", "fp32", ("m", "n")),
    )
    function = device.build(build_request(row, path), params)

    def multiply(a: NDArray[Any], b: NDArray[Any], c: NDArray[np.float32]) -> NDArray[np.float32]:
        operands = {"a": _contained(row, a), "b": _contained(row, b.T), "c": c}
        arrays = [device.upload(np.ascontiguousarray(x), name) for name, x in operands.items()]
        out = device.empty((M, N), np.dtype(np.float32), name="d")
        try:
            device.launch(function, LaunchPlan((1, 1, 1), (32, 1, 1)), [*arrays, out])
            device.synchronize()
            return device.download(out)
        finally:
            device.free(*arrays, out)

    return multiply


def _contained(row: Format, codes: NDArray[Any]) -> NDArray[Any]:
    """Sub-byte codes where the instruction wants them in a byte."""
    return to_containers(row, codes) if row.bits < 8 else codes
