"""The emulated device: PTX run on the CPU by NumPy, bit for bit.

``Machine`` (machine.py) is the whole interface: memory, program loading and launches. Below it:
``ptx/`` parses and flattens, ``flow`` cuts a kernel into segments, ``codegen`` turns a segment into
one Python function over arrays, ``ops/`` holds what instructions compute, ``memory*`` the address
spaces with their checks, ``executor`` the order in which lanes run.
"""

from gpulab.emulator.machine import Machine, Program, Report

__all__ = ["Machine", "Program", "Report"]
