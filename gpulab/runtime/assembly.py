"""From a build request to code, in the same way for both devices.

``prepare`` compiles a request for a target and reads off what the code uses. The emulated device
runs the PTX. The card runs a cubin: where CUDA C++ was compiled for the card's own target, the one
that NVRTC's ptxas made of that PTX; for Numba's PTX, PTX from elsewhere or a lower target, one that
nvJitLink makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpulab.registry import NumbaBuild, Param, RawBuild
from gpulab.runtime import cache, numba_ptx, nvjitlink, nvrtc, resources, toolkit
from gpulab.runtime.cache import Store
from gpulab.runtime.objects import Build, PtxBuild
from gpulab.runtime.resources import Resources
from gpulab.runtime.toolkit import Capability, Toolkit


@dataclass(frozen=True)
class Code:
    """A request compiled for one target.

    Args:
        label: the kernel's name in messages.
        entry: its symbol in PTX and cubin.
        target: the target of the PTX: ``sm_89``.
        ptx: the PTX text.
        abi: how arrays are passed.
        contract: whether ptxas may contract multiplications and additions.
        cubin_path: the cubin for ``target``, if NVRTC made one; else None.
        numba: the Numba kernel, if it is one; else None.
        resources: what it uses when assembled for ``target``; None if nothing here assembles it.
    """

    label: str
    entry: str
    target: str
    ptx: str
    abi: Literal["c", "numba"]
    contract: bool
    cubin_path: Path | None
    numba: numba_ptx.NumbaPtx | None
    resources: Resources | None


def prepare(
    request: Build,
    params: tuple[Param, ...],
    capability: Capability,
    *,
    kit: Toolkit | None = None,
    store: Store | None = None,
) -> Code:
    """Compile ``request`` for ``capability``.

    Raises:
        BuildError: the compiler, Numba or ptxas refuses it.
        DeviceMissingError: NVRTC is not installed.
    """
    kit, store = kit or toolkit.default(), store or cache.default_store()
    if isinstance(request, RawBuild):
        stored = cache.compile_source(
            request.source,
            request.entry,
            capability,
            defines=request.defines,
            feature_target=request.feature_target,
            contract=request.contract,
            kit=kit,
            store=store,
        )
        made = stored.compiled
        return Code(
            label=request.entry,
            entry=made.lowered,
            target=made.target,
            ptx=made.ptx,
            abi="c",
            contract=request.contract,
            cubin_path=stored.cubin_path,
            numba=None,
            resources=resources.parse(made.log, made.lowered, made.ptx),
        )
    numba = None
    if isinstance(request, NumbaBuild):
        numba = numba_ptx.compile_numba(request, params, capability, kit=kit, store=store)
        label, request = request.key, PtxBuild(numba.ptx, numba.entry, "numba")
    else:
        label = request.entry
    target = nvrtc.target_name(kit, capability)
    used = None
    if nvjitlink.version(kit.version[0]) is not None:
        log = assemble(request.ptx, target, major=kit.version[0], store=store, name=label)[1]
        used = resources.parse(log, request.entry, request.ptx)
    return Code(
        label=label,
        entry=request.entry,
        target=target,
        ptx=request.ptx,
        abi=request.abi,
        contract=False,
        cubin_path=None,
        numba=numba,
        resources=used,
    )


def assemble(
    ptx: str,
    target: str,
    *,
    major: int,
    contract: bool = False,
    store: Store | None = None,
    name: str = "kernel",
) -> tuple[Path, str]:
    """``nvjitlink.assemble`` through the cache.

    Returns:
        The file of the cubin, and what ptxas said.

    Raises:
        BuildError: ptxas refuses it, or nvJitLink is not installed.
    """
    store = store or cache.default_store()
    version = nvjitlink.version(major)
    key = cache.key(
        {"ptx": ptx, "target": target, "contract": contract, "nvjitlink": list(version or ())}
    )
    if (found := store.get(key)) is not None:
        return store.path(key) / "kernel.cubin", str(found[1]["log"])
    linked = nvjitlink.assemble(ptx, target, major=major, contract=contract, name=name)
    notes = {"log": linked.log, "name": name}
    folder = cache.publish(store, key, {"kernel.cubin": linked.image}, notes)
    return folder / "kernel.cubin", linked.log
