"""SIGINT and SIGTERM: the first is heard once, a second ends at once, no process is left."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gpulab import registry
from gpulab.cli import interruption
from gpulab.lab.compiling import Ahead
from gpulab.runtime.emulated import EmulatedDevice

TWICE = """
import signal, sys, threading, time
from gpulab.cli.interruption import heard
threading.Thread(target=time.sleep, args=(20,)).start()  # a compilation that is under way
try:
    with heard():
        signal.raise_signal(signal.Signals[sys.argv[1]])
except KeyboardInterrupt:
    print("heard", flush=True)
signal.raise_signal(signal.SIGINT)
print("still here")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_second_ends_at_once(name):
    done = subprocess.run(
        [sys.executable, "-c", TWICE, name],
        capture_output=True, text=True, timeout=15, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "heard\n", "")


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored():
    before = [signal.getsignal(each) for each in interruption.SIGNALS]
    with interruption.heard():
        assert all(
            signal.getsignal(each) is not was
            for each, was in zip(interruption.SIGNALS, before, strict=True)
        )
    assert [signal.getsignal(each) for each in interruption.SIGNALS] == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruption.heard():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])


def test_a_process_that_compiles_is_deaf_from_its_start_and_ends_with_the_command(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("GPULAB_CACHE_DIR", str(tmp_path))
    rows = list(registry.cases("crossentropy", backend="numba", kernel="online", format="bf16"))
    with Ahead(EmulatedDevice((8, 9)), processes=1) as ahead:
        ahead.submit(rows, {"rows": 2, "cols": 33})
        (worker,) = ahead._workers
        os.kill(worker.pid, signal.SIGINT)  # before it has imported anything
        worker.join(0.3)
        assert worker.is_alive()
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert gone(worker)
    assert worker.exitcode in (None, -signal.SIGKILL)  # None: the pool has reaped it


def gone(worker, seconds=20):
    """Whether a process ends by then. (Who reaps it, the pool or its caller, is chance.)"""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            worker.join(0.02)
            os.kill(worker.pid, 0)
        except ProcessLookupError:
            return True
    return False


@pytest.mark.parametrize("sent", interruption.SIGNALS)
def test_a_signal_to_the_real_command_ends_it_with_what_it_has(sent):
    with subprocess.Popen(
        [sys.executable, "-m", "gpulab", "matmul", "--size", "96", "--device", "emulated"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline().startswith("device: emulated")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        os.killpg(process.pid, sent)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[-1].startswith("INTERRUPTED while ")
    assert "PASS: " not in out
    assert err == "\ninterrupted\n"
