"""Where the recorded hardware results are: samples in the tree, full archives beside it."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "data"
BESIDE = sorted(ROOT.parent.glob("*/golden"))
"""Folders of that name in those that lie beside the checkout."""
FULL = Path(os.environ.get("GPULAB_GOLDEN") or (BESIDE or [ROOT / "golden"])[0])

FORMS = {  # key in the archive: instruction
    "fp16_k16": "mma.sync.m16n8k16.f32.f16.f16.f32",
    "fp16_k8": "mma.sync.m16n8k8.f32.f16.f16.f32",
    "bf16_k16": "mma.sync.m16n8k16.f32.bf16.bf16.f32",
    "bf16_k8": "mma.sync.m16n8k8.f32.bf16.bf16.f32",
    "tf32_k8": "mma.sync.m16n8k8.f32.tf32.tf32.f32",
    "tf32_k4": "mma.sync.m16n8k4.f32.tf32.tf32.f32",
    "fp16_k16_acc16": "mma.sync.m16n8k16.f16.f16.f16.f16",
    "e4m3_k32": "mma.sync.m16n8k32.f32.e4m3.e4m3.f32",
    "e5m2_k32": "mma.sync.m16n8k32.f32.e5m2.e5m2.f32",
    "e4m3xe5m2_k32": "mma.sync.m16n8k32.f32.e4m3.e5m2.f32",
    "wg_fp16": "wgmma.m64n8k16.f32.f16.f16",
    "wg_bf16": "wgmma.m64n8k16.f32.bf16.bf16",
    "wg_e4m3": "wgmma.m64n8k32.f32.e4m3.e4m3",
    "wg_e5m2": "wgmma.m64n8k32.f32.e5m2.e5m2",
}
FAMILIES = ("normal", "wide", "cancel", "subnormal", "accumulator", "special")
FINITE = FAMILIES[:5]


def full_path(name):
    """The file of a complete archive, or a skip that says where it was looked for."""
    path = FULL / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set GPULAB_GOLDEN to the folder that has {name}")
    return path


def full_archive(name):
    """The complete archive, or a skip."""
    return np.load(full_path(name))


@cache
def subset():
    """The committed sample of mma_sm90.npz, as a dict."""
    with np.load(SAMPLES / "mma_sm90_subset.npz") as archive:
        return {key: archive[key] for key in archive.files}


def operands(archive, form, family):
    return tuple(archive[f"{form}/{family}/{part}"] for part in "ABCD")
