"""Every kernel of the lab under race detection: no alarm, at sizes that leave tails; and an alarm
for each barrier and each wait that is taken out of one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpulab import registry
from gpulab.errors import FaultError
from gpulab.formats import encode
from gpulab.runtime import sources
from gpulab.runtime.cache import Store
from gpulab.runtime.device import POISONS
from gpulab.runtime.emulated import EmulatedDevice

CAPABILITY = (8, 9)
SIZES = {"m": 70, "n": 67, "k": 45, "batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 37} | {
    "seq_k": 70, "head_dim": 40, "causal": 1, "window": 0, "bias_planes": 2, "mask_planes": 1,
    "rows": 5, "cols": 301,
}  # fmt: skip
ALIGNED = SIZES | {"m": 72, "n": 80, "k": 96, "head_dim": 64}
"""Rows that 16-byte accesses may read."""
LONG = SIZES | {"cols": 9000}
"""A row for many warps, which copy it ahead."""
EACH = {"tails": SIZES, "aligned": ALIGNED, "long": LONG}
SCALARS = {"eps": np.float32(1e-5), "ignore_index": np.int32(-100)}
LABELS = 40


def kernels() -> Iterator[registry.Case]:
    """The first variant of each kernel that runs here, lessons left out."""
    seen = set()
    for op in sorted({spec.op for spec in registry.specs()}):
        for case in registry.cases(op):
            spec, variant = case.spec, case.variant
            name = (op, spec.backend, spec.name)
            if name in seen or variant.lesson or spec.build is None or not dims(case, SIZES):
                continue
            if case.refusal(CAPABILITY, "emulated", dims(case, SIZES)) is None:
                seen.add(name)
                yield case


def dims(case: registry.Case, sizes: dict[str, int]) -> dict[str, int]:
    params = case.spec.params(case.variant)
    named = {p.name for p in params if p.role == "dim"} | {d for p in params for d in p.dims}
    return {name: sizes[name] for name in named if name in sizes}


ELSEWHERE = [(op, "numba") for op in ("rmsnorm", "layernorm", "softmax", "logsoftmax")]
"""tests/emulated/test_numba_rows.py looks for races in the shapes of these in `make test`."""


def runs() -> Iterator[tuple[registry.Case, str]]:
    """Each kernel; where another size takes other instructions, at that size too."""
    for case in kernels():
        build, variant = case.spec.build, case.variant
        assert build is not None
        plain = build(variant, CAPABILITY, dims(case, SIZES))
        for name, sizes in EACH.items():
            here = build(variant, CAPABILITY, dims(case, sizes))
            if sizes is SIZES or (case.spec.backend == "raw" and here != plain):
                yield case, name


def inputs(
    param: registry.Param, storage: str, shape: tuple[int, ...], rng: np.random.Generator
) -> Any:
    if param.dtype == np.int32:
        return rng.integers(0, LABELS, shape).astype(np.int32)
    if param.dtype == np.int8 and storage != "int8":
        return rng.integers(0, 2, shape).astype(np.int8)
    values = rng.standard_normal(shape)
    return values.astype(np.float32) if param.dtype == np.float32 else encode(storage, values)


def launch(case: registry.Case, sizes: dict[str, int], device: EmulatedDevice) -> None:
    spec, variant, rng = case.spec, case.variant, np.random.default_rng(0)
    assert spec.build is not None
    assert spec.plan is not None
    here = dims(case, sizes)
    function = device.build(spec.build(variant, CAPABILITY, here), spec.params(variant))
    arguments: list[Any] = []
    for param in spec.params(variant):
        shape = tuple(sizes[d] for d in param.dims)
        if param.role == "out":
            arguments.append(device.empty(shape, param.dtype, POISONS[0], param.name))
        elif param.role == "in":
            values = inputs(param, variant.format, shape, rng)
            arguments.append(device.upload(values, param.name))
        else:
            arguments.append(sizes[param.name] if param.role == "dim" else SCALARS[param.name])
    device.launch(function, spec.plan(variant, CAPABILITY, here), arguments)
    device.free(*(a for a in arguments if hasattr(a, "handle")))


def test_every_op_is_among_them() -> None:
    assert {case.spec.op for case in kernels()} == {spec.op for spec in registry.specs()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        pytest.param(
            c,
            name,
            id=f"{c.spec.op}-{c.label}-{name}",
            marks=[pytest.mark.whole] if (c.spec.op, c.spec.backend) in ELSEWHERE else [],
        )
        for c, name in runs()
    ],
)
def test_no_alarm(case: registry.Case, sizes: str) -> None:
    launch(case, EACH[sizes], EmulatedDevice(CAPABILITY, sanitize=True))


class Site(NamedTuple):
    """A barrier or a wait, and the kernel whose run must miss it.

    Args:
        file: of the device code.
        number: place among those of the file.
        op: operation.
        kernel: name.
        sizes: at which.
    """

    file: str
    number: int
    op: str
    kernel: str
    sizes: dict[str, int]


NEEDED = [
    Site("matmul/simt.cu", 0, "matmul", "simt", SIZES),
    Site("matmul/simt.cu", 1, "matmul", "simt", SIZES),
    Site("matmul/blocked.cu", 0, "matmul", "blocked", SIZES),
    Site("matmul/blocked.cu", 1, "matmul", "blocked", ALIGNED),
    Site("matmul/mma_loop.cuh", 0, "matmul", "mma", SIZES),
    Site("matmul/mma_loop.cuh", 1, "matmul", "mma", ALIGNED),
    Site("matmul/mma_feed.cuh", 0, "matmul", "mma", ALIGNED),
    Site("matmul/mma_feed.cuh", 1, "matmul", "mma_3xtf32", SIZES),
    Site("attention/simt.cuh", 0, "attention", "simt", SIZES),
    Site("attention/simt.cuh", 1, "attention", "simt", SIZES),
    Site("attention/mma_walk.cuh", 0, "attention", "mma", ALIGNED),
    Site("attention/mma_walk.cuh", 1, "attention", "mma", ALIGNED),
    Site("attention/mma_walk.cuh", 2, "attention", "mma", ALIGNED),
    Site("common/reduce.cuh", 2, "softmax", "two_pass", LONG),
    Site("common/stream.cuh", 0, "rmsnorm", "row", LONG),
]
NOT_MISSED = {
    ("attention/mma_walk.cuh", 3): "nothing is read after the last wait",
    ("common/reduce.cuh", 0): "of clusters, which capability 8.9 does not have",
    ("common/reduce.cuh", 1): "of clusters",
    ("common/reduce.cuh", 3): "of clusters; test_rows_turns.py takes it out there",
    ("common/reduce.cuh", 4): "of clusters",
    ("common/reduce.cuh", 5): "of rows that overflow; test_rows_turns.py takes it out there",
}
_MEETING = re.compile(r"(?:__syncthreads\(\)|ptx::(?:cp_async|cluster)_wait(?:<[^;]*>)?\(\));")


def meetings(file: str) -> list[tuple[int, int]]:
    """Where the barriers and waits of a file stand, comments left out."""
    text = re.sub(r"//[^\n]*", lambda c: " " * len(c[0]), (sources.root() / file).read_text())
    return [found.span() for found in _MEETING.finditer(text)]


def test_every_meeting_of_these_files_is_looked_at() -> None:
    listed = {(site.file, site.number) for site in NEEDED} | set(NOT_MISSED)
    assert listed == {(f, i) for f, _ in listed for i in range(len(meetings(f)))}


@pytest.mark.parametrize("site", NEEDED, ids=lambda s: f"{s.file}-{s.number}")
def test_a_barrier_or_wait_that_is_taken_out_is_missed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end = meetings(site.file)[site.number]
    copy = shutil.copytree(sources.root(), tmp_path / "raw_kernels")
    text = (copy / site.file).read_text()
    (copy / site.file).write_text(f"{text[:begin]};{text[end:]}")
    monkeypatch.setattr(sources, "root", lambda: copy)
    (case,) = (c for c in kernels() if (c.spec.op, c.spec.name) == site[2:4] and _raw(c))
    device = EmulatedDevice(CAPABILITY, sanitize=True, store=Store(tmp_path / "cache"))
    with pytest.raises(FaultError) as raised:
        launch(case, site.sizes, device)
    assert raised.value.details["fault"] in ("race", "async_in_flight")
    assert Path(raised.value.details["file"]).is_relative_to(copy)


def _raw(case: registry.Case) -> bool:
    return case.spec.backend == "raw"
