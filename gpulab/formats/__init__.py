"""Number formats: their rows, constants, exact encoder and decoder.

>>> from gpulab.formats import decode, encode
>>> float(decode("fp16", encode("fp16", 1.0007)))
1.0009765625
"""

from __future__ import annotations

from gpulab.formats.codec import Rounding, decode, encode
from gpulab.formats.paths import Path
from gpulab.formats.row import Block, Format
from gpulab.formats.table import FORMATS, get, names, storage_dtype

__all__ = [
    "FORMATS",
    "Block",
    "Format",
    "Path",
    "Rounding",
    "decode",
    "encode",
    "get",
    "names",
    "storage_dtype",
]
