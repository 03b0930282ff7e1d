"""Frames between the judge and a worker: what comes back is what was sent, or is refused."""

import io
import json
import struct

import numpy as np
import pytest

from gpulab.check.wire import WireError, pack, unpack


def reader(data):
    return io.BytesIO(data).read


def frame(listed, body, message=None):
    text = json.dumps({**(message or {}), "arrays": listed}).encode()
    return struct.pack(">IQ", len(text), len(body)) + text + body


def test_a_frame_comes_back_as_it_was_sent():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1],
        "none": np.zeros((0, 4), np.uint8),
        "b": np.array([-1, 7], np.int32),
    }
    both = pack({"do": "run"}, arrays) + pack({"do": "open"})
    read = reader(both)
    message, found = unpack(read)
    assert message == {"do": "run"}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    assert unpack(read) == ({"do": "open"}, {})
    with pytest.raises(WireError, match="stream ended"):
        unpack(read)


@pytest.mark.parametrize("cut", [1, 11, 12, 30, -1])
def test_a_frame_that_is_cut_off(cut):
    with pytest.raises(WireError, match="stream ended"):
        unpack(reader(pack({"do": "run"}, {"a": np.ones(5)})[:cut]))


@pytest.mark.parametrize(
    ("listed", "body", "words"),
    [
        ([["a", "uint8", [3]], ["b", "uint8", [3]]], bytes(5), "arrays longer than the frame"),
        ([["a", "uint8", [3]]], bytes(4), "longer than its arrays"),
        ([["a", "float32", [-1]]], b"", "shape"),
        ([["a", "float32", [1.5]]], bytes(6), "shape"),
        ([["a", "object", [1]]], bytes(8), "an array of object"),
        ([["a", "uint8"]], bytes(1), "malformed"),
        (7, b"", "malformed"),
    ],
)
def test_a_frame_whose_arrays_are_not_what_it_says(listed, body, words):
    with pytest.raises(WireError, match=words):
        unpack(reader(frame(listed, body)))


def test_a_frame_of_more_bytes_than_any_is_refused_unread():
    with pytest.raises(WireError, match=r"a frame of \d+ \+ 1 bytes"):
        unpack(reader(struct.pack(">IQ", (64 << 20) + 1, 1)))
    with pytest.raises(WireError, match=r"a frame of 2 \+ \d+ bytes"):
        unpack(reader(struct.pack(">IQ", 2, (8 << 30) + 1)))


@pytest.mark.parametrize("text", [b"[]", b"7", b"{", b"\xff\xfe"])
def test_a_frame_that_is_no_object(text):
    with pytest.raises(WireError):
        unpack(reader(struct.pack(">IQ", len(text), 0) + text))
