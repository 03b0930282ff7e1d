"""What an mbarrier orders: what came before an arrival, for those who waited after it."""

import numpy as np
import pytest
from race_watch import Watch

from gpulab.errors import FaultError

BAR = 512
ARRIVE = {"nbytes": 8, "opcode": "mbarrier.arrive.shared.b64"}
WAIT = {"nbytes": 8, "opcode": "mbarrier.test_wait.parity.shared.b64"}


def told(watch: Watch, lane: int) -> bool:
    """Whether the store of word 0 is ordered before a lane's load."""
    try:
        watch.do("load", 0, [lane])
    except FaultError as fault:
        return fault.details["fault"] != "race"
    return True


@pytest.mark.parametrize(("arrives", "waits"), [(True, True), (True, False), (False, True)])
def test_an_arrival_and_a_wait(arrives: bool, waits: bool) -> None:
    watch = Watch()
    watch.do("store", 0, [3])
    if arrives:
        watch.do("atomic", BAR, [3], **ARRIVE)
    if waits:
        watch.do("load", BAR, [40], **WAIT)
    assert told(watch, 40) == (arrives and waits)


def test_a_wait_before_the_arrival_tells_nothing() -> None:
    watch = Watch()
    watch.do("store", 0, [3])
    watch.do("load", BAR, [40], **WAIT)
    watch.do("atomic", BAR, [3], **ARRIVE)
    assert not told(watch, 40)


def test_who_has_not_waited_is_told_nothing_beside_one_who_has() -> None:
    watch = Watch()
    watch.do("store", 0, [3])
    watch.do("atomic", BAR, [3], **ARRIVE)
    watch.do("load", BAR, [40], **WAIT)
    with pytest.raises(FaultError) as caught:
        watch.do("load", 0, [40, 41])
    assert caught.value.details["thread"] == (9, 2, 0), "thread 41 of rows of 16"


@pytest.mark.parametrize("meets", ["before the store", "after the store", "never"])
def test_one_lane_arrives_for_those_it_has_met(meets: str) -> None:
    watch = Watch()
    if meets == "before the store":
        watch.syncwarp(range(32))
    watch.do("store", 0, [3])
    if meets == "after the store":
        watch.syncwarp(range(32))
    watch.do("atomic", BAR, [0], **ARRIVE)
    watch.do("load", BAR, [40], **WAIT)
    assert told(watch, 40) == (meets == "after the store")


@pytest.mark.parametrize(("lane", "knows"), [(40, True), (41, True), (42, False)])
def test_one_lane_waits_for_those_it_meets_then(lane: int, knows: bool) -> None:
    watch = Watch()
    watch.do("store", 0, [3])
    watch.do("atomic", BAR, [3], **ARRIVE)
    watch.do("load", BAR, [40], **WAIT)
    watch.syncwarp([40, 41], np.uint32([[0b11 << 8]]))
    assert told(watch, lane) == knows
