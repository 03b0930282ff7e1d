"""CUDA's error codes in the lab's words.

Most faults poison the CUDA context: every later call of the process fails with the same code. The
message says so, because nothing but a new process helps.

Source: CUDA Runtime API, enumeration ``cudaError`` (the driver API's codes are the same numbers
from 700 on).
"""

from __future__ import annotations

from gpulab.errors import (
    DeviceMissingError,
    FaultError,
    GpulabError,
    KernelTimeoutError,
    UsageError,
)

_TIMEOUT = 702
_FAULTS = {
    700: ("out_of_bounds", "an illegal address"),
    710: ("trap", "a failed device assertion"),
    714: ("stack", "a corrupt or overflowing stack"),
    715: ("illegal_instruction", "an illegal instruction"),
    716: ("misaligned", "a misaligned address"),
    717: ("address_space", "an instruction on the wrong address space"),
    718: ("invalid_pc", "a jump to an invalid address"),
    719: ("crash", "a crash (a trap, or an access that the hardware could not name)"),
    720: ("launch", "a cooperative launch that is too large"),
}
_LAUNCH_REFUSED = {1: "invalid value", 9: "invalid configuration", 701: "too many resources"}
_NO_DEVICE = {3, 35, 46, 100, 101, 209, 222, 802, 803, 804}
DEAD = "the CUDA context of this process is dead: start a new process"


def status(error: BaseException) -> int | None:
    """The CUDA error code of a CuPy exception; None for any other, cuBLAS' own codes included."""
    if type(error).__name__ == "CUBLASError":
        return None
    code = getattr(error, "status", None)
    return int(code) if isinstance(code, int) else None


def is_cuda(error: BaseException) -> bool:
    """Whether CuPy, cuda.core or Numba raised it about a call of CUDA or of its libraries."""
    return type(error).__name__ in (
        "CUDARuntimeError",
        "CUDADriverError",
        "CUBLASError",
        "CUDAError",
        "CudaAPIError",
    )


def kills_context(code: int) -> bool:
    """Whether no later call of this process can succeed."""
    return code in _FAULTS or code == _TIMEOUT


def translate(error: BaseException, doing: str) -> GpulabError:
    """The lab's error for an exception of CuPy.

    Args:
        error: what CuPy raised.
        doing: ``launching matmul_simt<float>``, ``waiting for matmul_simt<float>``.
    """
    code, words = status(error), str(error).splitlines()[0] if str(error) else type(error).__name__
    if code is None:
        return FaultError(f"{doing}: {words}", fault="device_error")
    if code in _FAULTS:
        fault, what = _FAULTS[code]
        return FaultError(
            f"{doing}: {what} ({words}); {DEAD}",
            fix="run it on the emulated device, which names the thread and the source line: "
            "--device emulated",
            fault=fault,
            cuda_error=code,
        )
    if code == _TIMEOUT:
        return KernelTimeoutError(f"{doing}: the driver stopped it ({words}); {DEAD}")
    if code in _LAUNCH_REFUSED:
        return UsageError(f"{doing}: the driver refuses the launch ({words})", cuda_error=code)
    if code in _NO_DEVICE:
        return DeviceMissingError(f"{doing}: {words}", cuda_error=code)
    return FaultError(f"{doing}: {words}", fault="device_error", cuda_error=code)


def out_of_memory(needed: int, free: int, total: int, name: str) -> DeviceMissingError:
    """The error for an allocation that does not fit; sizes in bytes."""
    return DeviceMissingError(
        f"{name or 'an array'} needs {needed} bytes of GPU memory ({needed / 1e9:.2f} GB); "
        f"{free} are free ({free / 1e9:.2f} of {total / 1e9:.2f} GB)",
        fix="choose a smaller size, or end other processes on the card (nvidia-smi lists them)",
        needed_bytes=needed,
        free_bytes=free,
    )
