"""How many clusters the driver says fit, over a driver that writes down what it was asked."""

import ctypes
import struct
from dataclasses import replace

import pytest

from gpulab.errors import DeviceMissingError, FaultError
from gpulab.registry import LaunchPlan
from gpulab.runtime import driver, residency

PLAN = LaunchPlan((2048, 1, 1), (256, 1, 1), 64, persistent=True, cluster=8)


class Driver:
    """libcuda; what it is asked is read at the offsets that cuda.h gives."""

    def __init__(self, status, count):
        self.status, self.count, self.asked = status, count, []

    def cuFuncSetAttribute(self, function, attribute, value):
        self.asked.append((function.value, attribute, value))
        return self.status

    def cuOccupancyMaxActiveClusters(self, out, function, launch):
        given = bytes(launch._obj)
        shape = struct.unpack_from("7I", given)  # grid, block, bytes of shared memory
        stream, attributes, number = struct.unpack_from("QQI", given, 32)
        attribute = struct.unpack("i4x3I", ctypes.string_at(attributes, 20))
        self.asked.append((function.value, shape, stream, number, attribute))
        out._obj.value = self.count
        return self.status


def test_the_driver_is_asked_by_the_dimension_of_a_cluster(monkeypatch):
    """CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION is 4; a handle has 64 bits."""
    made = Driver(0, 15)
    monkeypatch.setattr(driver, "load", lambda: made)
    assert residency.clusters_at_once(1 << 40, PLAN) == 15
    assert made.asked == [(1 << 40, (8, 1, 1, 256, 1, 1, 64), 0, 1, (4, 8, 1, 1))]


@pytest.mark.parametrize(
    ("status", "count", "words"),
    [
        (400, 15, "refuses clusters of 8 blocks of 256 threads and 64 bytes .* status 400"),
        (0, 0, "the card holds no cluster of 8 blocks of 256 threads and 64 bytes"),
    ],
)
def test_a_question_that_is_not_answered_is_named(monkeypatch, status, count, words):
    monkeypatch.setattr(driver, "load", lambda: Driver(status, count))
    with pytest.raises(FaultError, match=words) as caught:
        residency.blocks_along_x(PLAN, 132, lambda: residency.clusters_at_once(7, PLAN))
    assert caught.value.details == {"fault": "driver_refusal"}


def test_without_a_driver_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(driver, "load", lambda: None)
    with pytest.raises(DeviceMissingError, match="no NVIDIA driver"):
        residency.clusters_at_once(7, PLAN)


def test_clusters_of_more_blocks_than_every_card_takes_are_asked_for(monkeypatch):
    """CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED is 14."""
    made = Driver(0, 7)
    monkeypatch.setattr(driver, "load", lambda: made)
    residency.allow_cluster(1 << 40, PLAN)
    assert made.asked == []
    residency.allow_cluster(1 << 40, replace(PLAN, cluster=16))
    assert made.asked == [(1 << 40, 14, 1)]


def test_a_cluster_that_the_driver_refuses_is_named(monkeypatch):
    monkeypatch.setattr(driver, "load", lambda: Driver(801, 7))
    with pytest.raises(FaultError, match="refuses clusters of 16 blocks: status 801") as caught:
        residency.allow_cluster(7, replace(PLAN, cluster=16))
    assert caught.value.details == {"fault": "driver_refusal"}
