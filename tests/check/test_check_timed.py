"""What is timed on a card, over a simulated one: nothing of an earlier launch can help a launch."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from gpulab.check import speed, timed
from gpulab.check.worker import digest
from gpulab.errors import FaultError
from gpulab.exercises import get
from gpulab.numerics.structure import POISONS
from gpulab.runtime import timing
from gpulab.runtime.device import DeviceArray

MATMUL = get("fp16-matmul")
DIMS = {"m": 24, "n": 2, "k": 5}


class Clock:
    """A kernel takes as long as it says; every call is logged."""

    l2_bytes, flush_bytes = 1000, 2000

    def __init__(self, card):
        self.card, self.now, self.log = card, 0.0, card.log

    def flush(self):
        self.now += 1.0

    def record(self):
        self.log.append("event")
        return self.card.spent

    def passed(self, event):
        return False

    def elapsed_ms(self, start, stop):
        return stop - start

    def synchronize(self):
        pass

    def capture(self, body):
        def replay():
            self.log.append("graph")
            body()

        return replay

    def telemetry(self):
        return timing.Telemetry()

    def host_ms(self):
        return 0.0

    def reset_persisting(self):
        self.log.append("reset")

    def peaks(self):
        return {"sm_khz": 1_980_000}


class Card:
    """Host memory that calls itself a card; a loaded module counts its launches."""

    kind = "cuda"

    def __init__(self, kernel, ms):
        self.kernel, self.ms = kernel, ms
        self.log, self.spent, self.kept = [], 0.0, None
        self.cupy = SimpleNamespace(clear_memo=self.forget)

    def forget(self):
        self.kept = None
        self.log.append("forget")

    def build(self, request, params):
        self.kept = self.kept or SimpleNamespace(launches=0, memory={}, params=params)
        return self.kept

    def upload(self, host, name=""):
        return DeviceArray(host.shape, host.dtype, host.copy(), name)

    def download(self, array):
        return array.handle.copy()

    def refill(self, array, poison):
        array.handle.view(np.uint8)[...] = poison

    def free(self, *arrays):
        self.log.append("free")

    def bind(self, module, plan, args):
        a, b, c, *_ = (getattr(x, "handle", x) for x in args)

        def launch():
            module.launches += 1
            self.log.append("launch")
            self.spent += self.ms
            self.kernel(module, a, b, c)

        return launch

    def synchronize(self):
        pass


def honest(module, a, b, c):
    c[...] = a.astype(np.float32) @ b.astype(np.float32)


def right_for_ten(module, a, b, c):
    if module.launches <= 10:
        honest(module, a, b, c)


def remembers_content(module, a, b, c):
    key = a.tobytes()
    if key not in module.memory:
        honest(module, a, b, c)
        module.memory[key] = c.copy()
    else:
        module.memory["helped"] = True
        c[...] = module.memory[key]


def skips_what_is_written(module, a, b, c):
    if (c.view(np.uint8) == POISONS[0]).all():
        honest(module, a, b, c)
    else:
        module.memory["helped"] = True


@pytest.fixture
def take(monkeypatch):
    def run(kernel, *, keeps=False, ms=0.1, first=7, set_bytes=300):
        card = Card(kernel, ms)
        monkeypatch.setattr(timed, "clock_of", lambda _: Clock(card))
        rng = np.random.default_rng(3)
        inputs = {
            "a": rng.normal(size=(24, 5)).astype(np.float16),
            "b": rng.normal(size=(5, 2)).astype(np.float16),
        }
        message = {
            "dims": DIMS, "plan": [[1, 1, 1], [32, 1, 1], 0], "moving": {"a": 0, "c": 0},
            "first": first, "keeps": keeps, "set_bytes": set_bytes, "runs": 6, "warmup": 2,
        }  # fmt: skip
        answer = timed.take(card, (None, MATMUL.params), message, inputs)
        return card, inputs, answer

    return run


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("ms", [0.1, 0.001])
def test_every_timed_output_is_the_judged_one_shifted(take, keeps, ms):
    _, inputs, answer = take(honest, keeps=keeps, ms=ms)
    right = inputs["a"].astype(np.float32) @ inputs["b"].astype(np.float32)
    assert len(answer["outputs"]) >= 6
    for index, name, seen in answer["outputs"]:
        assert (name, seen) == ("c", digest(np.roll(right, 7 + index, axis=0)))
    assert answer["peaks"] == {"sm_khz": 1_980_000}
    assert answer["time_ms"]["median"] == pytest.approx(ms)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("ms", [0.1, 0.001])
def test_persisting_lines_are_reset_before_every_window(take, keeps, ms):
    card, *_ = take(honest, keeps=keeps, ms=ms)
    timed_from = card.log.index("reset")
    windows = "".join({"reset": "R", "event": "E"}.get(x, "") for x in card.log[timed_from:])
    assert re.sub("R+", "R", windows) == "REE" * 6


@pytest.mark.parametrize(("nbytes", "sets"), [(300, 7), (150, 14), (20, 16), (2000, 3)])
def test_input_sets_are_twice_the_l2(take, nbytes, sets):
    _, _, answer = take(honest, set_bytes=nbytes)
    assert answer["timing"]["input_sets"] == max(sets, timed.LEAST_SETS)


def test_a_set_is_launched_once_a_window(take):
    card, _, answer = take(skips_what_is_written, ms=0.001)
    assert answer["timing"]["method"] == "graph"
    last = len(card.log) - card.log[::-1].index("graph")
    assert card.log[last:].count("launch") == answer["timing"]["launches_per_window"]
    assert answer["timing"]["launches_per_window"] == answer["timing"]["input_sets"]


def test_a_module_with_variables_is_loaded_afresh_for_every_launch(take):
    card, inputs, answer = take(remembers_content, keeps=True, ms=0.001)
    assert answer["timing"]["launches_per_window"] == 1
    assert "helped" not in card.kept.memory
    assert card.kept.launches == 2  # one on other data, which loads the code, and the timed one
    *_, late = take(right_for_ten, keeps=True)
    right = inputs["a"].astype(np.float32) @ inputs["b"].astype(np.float32)
    assert all(s == digest(np.roll(right, 7 + i, axis=0)) for i, _, s in late["outputs"])


def test_without_a_fresh_module_both_cheats_would_work(take):
    card, _, _ = take(remembers_content)
    assert card.kept.memory["helped"]
    _, inputs, answer = take(right_for_ten)
    right = inputs["a"].astype(np.float32) @ inputs["b"].astype(np.float32)
    assert any(s != digest(np.roll(right, 7 + i, axis=0)) for i, _, s in answer["outputs"])


def test_a_write_beside_an_array_while_timed_is_a_fault(take):
    def beside(module, a, b, c):
        honest(module, a, b, c)
        whole = c
        while whole.base is not None:
            whole = whole.base
        whole[-1] = 0

    with pytest.raises(FaultError, match="after the array c"):
        take(beside)


H200 = {"sm_khz": 1_980_000, "multiprocessors": 132, "memory_khz": 3_201_000, "memory_bits": 6144}


@pytest.mark.parametrize(
    ("name", "least_ms", "text"),
    [
        # 2 * 2048^3 at 132 * 1.98e9 * (4096, 8192, 256) a second; 2 * 4096^2 * 2 + 4096 * 2 bytes
        ("fp16-matmul", 2 * 2048**3 / (132 * 1.98e9 * 4096) * 1e3, "GFLOP"),
        ("fp8-matmul", 2 * 2048**3 / (132 * 1.98e9 * 8192) * 1e3, "GFLOP"),
        ("tiled-matmul", 2 * 2048**3 / (132 * 1.98e9 * 256) * 1e3, "GFLOP"),
        ("rmsnorm", (4 * 4096**2 + 2 * 4096) / (2 * 3.201e9 * 6144 / 8) * 1e3, "TB/s"),
    ],
)
def test_the_floor_is_what_the_card_can_do_at_most(name, least_ms, text):
    least, why = speed.floor(get(name), (9, 0), H200)
    assert least == pytest.approx(least_ms)
    assert text in why


def test_there_is_no_floor_where_nothing_is_known():
    assert speed.floor(get("fp16-matmul"), (8, 9), {})[0] == 0
    assert speed.floor(get("fp16-matmul"), (8, 9), H200)[1].endswith("TB/s")


def test_what_is_timed_repeats_what_was_judged(monkeypatch):
    from dataclasses import replace

    from gpulab.check import ptx
    from gpulab.check.runner import Code, Submitted
    from gpulab.check.submission import Launch

    small = replace(MATMUL, timed={"m": 3, "n": 2, "k": 5})

    class Worker:
        def __init__(self, results):
            self.results = list(results)

        def ask(self, message, arrays=None, **_):
            if message["do"] != "run":
                return {}, {}
            told = {"inputs": {n: digest(a) for n, a in arrays.items()}}
            return told, {"c": np.full((3, 2), self.results.pop(0), np.float32)}

    monkeypatch.setattr(Submitted, "wire_plan", lambda self: [])
    check = SimpleNamespace(capability=(9, 0), seed=3)
    inputs = speed.get_subject("matmul").inputs(
        speed.Setting(small.variant, (9, 0), False, small.timed, 3), "normal"
    )
    run = Submitted(
        Worker([1.0, 1.0, 2.0]), Code("", "matmul", "c", Launch((), (), None)), small, 1
    )
    run.at(small.timed)(inputs, poison=0xA5)
    assert run.at(small.timed)(inputs, poison=0x5A) is not None
    assert run.repeats
    with pytest.raises(speed.WrongOutput, match="another result than when judged"):
        speed.take(check, run, small, small.timed)
    assert not ptx.adds_atomically(run.code.ptx)
