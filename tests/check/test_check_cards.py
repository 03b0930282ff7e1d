"""Judges on several cards: each has one, and a timed launch has its card alone."""

import fcntl
import multiprocessing
import os
import time

import pytest

from gpulab.check import cards, folder
from gpulab.check.client import Client
from gpulab.check.session import Options
from gpulab.runtime.driver import Card, Driver

H200, OLD, T4 = ("NVIDIA H200", (9, 0)), ("GeForce GTX 1080", (6, 1)), ("Tesla T4", (7, 5))


def present(monkeypatch, *models, visible=None):
    listed = tuple(Card(i, *model) for i, model in enumerate(models))
    monkeypatch.setattr("gpulab.runtime.driver.query", lambda: Driver((13, 0), None, listed))
    if visible is None:
        monkeypatch.delenv(cards.VISIBLE, raising=False)
    else:
        monkeypatch.setenv(cards.VISIBLE, visible)
    return cards.usable()


def test_cards_that_are_alike_are_used(monkeypatch):
    assert present(monkeypatch, H200, H200) == ("0", "1")
    assert present(monkeypatch, OLD, H200, T4, H200) == ("1", "3")
    assert present(monkeypatch, OLD) == ()
    assert present(monkeypatch, H200, H200, visible="5, GPU-8a") == ("5", "GPU-8a")
    monkeypatch.setattr("gpulab.runtime.driver.query", lambda: None)
    assert cards.usable() == ()


def free(path):
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def test_turns(tmp_path):
    turn, other = (cards.Turn(card, tmp_path) for card in ("0", "1"))
    with turn.shared(), cards.Turn("0", tmp_path).shared():
        assert not free(turn.use)
        assert free(turn.gate)
    with turn.alone():
        assert not free(turn.use)
        assert not free(turn.gate)  # nobody comes in meanwhile
        assert free(other.use)
        assert free(other.gate)
    assert free(turn.use)


def test_a_card_is_named_by_what_pins_it(monkeypatch, tmp_path):
    monkeypatch.setenv(cards.VISIBLE, "GPU-8a/../x,3")
    assert cards.Turn(folder=tmp_path).use.parent == tmp_path
    cards.pin("3")
    assert os.environ[cards.VISIBLE] == "3"
    assert "card-3" in cards.Turn().use.name


def _hold(folder_, how, started, log):
    turn = cards.Turn("0", folder_)
    with turn.alone() if how == "alone" else turn.shared():
        begun = time.monotonic()
        started.set()
        time.sleep(0.3)
        log.put((how, begun, time.monotonic()))


def test_what_is_timed_overlaps_with_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    started, log = context.Event(), context.Queue()
    holders = []
    for how in ("shared", "alone", "shared"):
        started.clear()
        one = context.Process(target=_hold, args=(tmp_path, how, started, log))
        one.start()
        holders.append(one)
        if how == "shared":
            started.wait(5)
    spans = [log.get(timeout=10) for _ in holders]
    for one in holders:
        one.join()
    (alone,) = [s for s in spans if s[0] == "alone"]
    for _, begun, ended in [s for s in spans if s[0] == "shared"]:
        assert ended <= alone[1] or begun >= alone[2]


def _where(path, options):
    time.sleep(0.2)  # so that every judge gets one
    return {"file": str(path), "card": os.environ.get(cards.VISIBLE)}


@pytest.mark.parametrize(("device", "wanted"), [("cuda", {"0", "1"}), ("emulated", {None})])
def test_judges_are_spread_over_the_cards(device, wanted, monkeypatch, tmp_path):
    present(monkeypatch, H200, H200)
    monkeypatch.setattr(folder, "check_one", _where)
    monkeypatch.setattr(folder.multiprocessing, "get_context", lambda _: FORK)
    waiting = [(tmp_path / f"{n}.cu", "") for n in range(4)]
    found = list(folder._parallel(waiting, Options(device=device), 2))
    assert {record["card"] for _, _, record in found} == wanted


FORK = multiprocessing.get_context("fork")


@pytest.mark.parametrize(
    ("device", "do", "wanted"),
    [("cuda", "time", ["alone"]), ("cuda", "run", ["shared"]), ("emulated", "run", [])],
)
def test_a_client_takes_turns(device, do, wanted, monkeypatch):
    taken = []

    class Told:
        def __getattr__(self, name):
            from contextlib import contextmanager

            @contextmanager
            def turn():
                taken.append(name)
                yield

            return turn

    class Silent:
        def __init__(self, *_):
            pass

        def ask(self, *_):
            return {"held": {}}, {}

        def kill(self):
            pass

    monkeypatch.setattr("gpulab.check.client.Turn", Told)
    monkeypatch.setattr("gpulab.check.client.Channel", Silent)
    with Client(device) as client:
        taken.clear()
        client.ask({"do": do}, seconds=1, doing="")
    assert taken == wanted
