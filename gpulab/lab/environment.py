"""What a committed record says about the machine that it was made on."""

from __future__ import annotations

import datetime
import platform
from typing import Any

import numpy as np

import gpulab
from gpulab import arch
from gpulab.runtime.device import Device


def environment(device: Device) -> dict[str, Any]:
    """Date, device, driver, compiler and library versions, as JSON-able values."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpulab": gpulab.__version__,
        "device": device.kind,
        "device_name": device.name,
        "capability": arch.dotted(device.capability),
        "driver": device.driver,
        "nvrtc": ".".join(map(str, device.kit.version)),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
