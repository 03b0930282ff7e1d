"""Number formats: their rows, constants, exact encoder and decoder.

>>> from gpulab.formats import decode, encode
>>> float(decode("fp16", encode("fp16", 1.0007)))
1.0009765625
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.errors import UsageError
from gpulab.formats.codec import Rounding, decode, encode
from gpulab.formats.table import FORMATS, Block, Format, Path

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

_BY_NAME = {name: row for row in FORMATS.values() for name in (row.name, *row.aliases)}
_CONTAINERS = {"int32": np.dtype(np.int32)}


def get(name: str) -> Format:
    """The row of a canonical name or alias.

    Raises:
        UsageError: no such format; names the known ones.
    """
    row = _BY_NAME.get(name.lower())
    if row is None:
        raise UsageError(f"unknown format {name!r}", fix=f"choose one of: {', '.join(names())}")
    return row


def names() -> tuple[str, ...]:
    """Canonical names, in table order."""
    return tuple(FORMATS)


def storage_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of stored codes; also knows the container ``int32``.

    Raises:
        UsageError: no such format.
    """
    return _CONTAINERS[name] if name in _CONTAINERS else get(name).storage
