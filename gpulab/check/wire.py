"""Messages between the judge and a worker: JSON and raw arrays over a pipe, never pickles.

A frame is two lengths (4 and 8 bytes, big-endian), a JSON object, and the bytes of its arrays,
which the object lists under ``arrays`` as ``[name, dtype, shape]``. What a worker sends is taken
as data only: sizes are bounded and dtypes are plain numbers.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_JSON = 64 << 20
MAX_ARRAYS = 8 << 30
_HEAD = struct.Struct(">IQ")
_DTYPES = {"uint8", "uint16", "uint32", "int8", "int32", "float16", "float32", "float64"}

Message = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


class WireError(Exception):
    """A frame that is not one: the other side died, or sends nonsense."""


def pack(message: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """One frame."""
    arrays = arrays or {}
    listed = [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()]
    text = json.dumps({**message, "arrays": listed}).encode()
    body = [octets(array) for array in arrays.values()]
    head = _HEAD.pack(len(text), sum(part.nbytes for part in body))
    return b"".join((head, text, *body))


def octets(array: NDArray[Any]) -> memoryview:
    """The bytes of an array, in place where they lie in order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def unpack(read: Callable[[int], bytes]) -> tuple[Message, Arrays]:
    """Read one frame.

    Args:
        read: returns exactly as many bytes as asked for, fewer only at the end of the stream.

    Raises:
        WireError: the stream ended, or the frame is malformed.
    """
    head = read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise WireError("the stream ended")
    text_bytes, body_bytes = _HEAD.unpack(head)
    if text_bytes > MAX_JSON or body_bytes > MAX_ARRAYS:
        raise WireError(f"a frame of {text_bytes} + {body_bytes} bytes")
    text, body = read(text_bytes), read(body_bytes)
    if len(text) < text_bytes or len(body) < body_bytes:
        raise WireError("the stream ended inside a frame")
    try:
        message = json.loads(text)
        if not isinstance(message, dict):
            raise WireError("a frame that is no object")
        listed = message.pop("arrays", [])
        return message, _arrays(listed, body)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError(f"a malformed frame: {error}") from None


def _arrays(listed: Any, body: bytes) -> Arrays:
    found: Arrays = {}
    at = 0
    for name, dtype, shape in listed:
        if dtype not in _DTYPES:
            raise WireError(f"an array of {dtype}")
        if any(not isinstance(n, int) or n < 0 for n in shape):
            raise WireError(f"an array of shape {shape}")
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if at + size > len(body):
            raise WireError("arrays longer than the frame")
        array = np.frombuffer(body, kind, math.prod(shape), at).reshape(shape)
        found[str(name)] = array
        at += size
    if at != len(body):
        raise WireError("a frame longer than its arrays")
    return found
