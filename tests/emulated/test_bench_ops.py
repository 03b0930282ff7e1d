"""``gpulab bench`` of row operations and attention, on an emulated device that passes for a card:
its clock says that every window took a millisecond."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gpulab.bench import bandwidth, ceiling_kernels
from gpulab.bench.ceilings import Bound
from gpulab.cli import bench_ops, main
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.telemetry import Telemetry

DIMS = {"rows": 4, "cols": 256}


class Pretended(EmulatedDevice):
    """Says that it is a card."""

    kind = "cuda"

    def bind_library(self, label, start, arrays):
        to, source = arrays
        assert label == "a copy"
        return lambda: self.machine.write(to.handle, self.download(source).tobytes())


class Clock:
    """Time stands still but for windows."""

    l2_bytes = flush_bytes = 1 << 12

    def flush(self):
        pass

    record = synchronize = flush

    def passed(self, event):
        return False

    def elapsed_ms(self, start, stop):
        return 1.0

    def telemetry(self):
        return Telemetry()

    def host_ms(self):
        return 0.0


@pytest.fixture
def card(monkeypatch):
    device = Pretended((8, 9))
    monkeypatch.setattr("gpulab.cli.session.open_device", lambda *a, **k: device)
    monkeypatch.setattr("gpulab.runtime.cuda_clock.clock_of", lambda device: Clock())
    monkeypatch.setattr("gpulab.bench.roofline.clock_of", lambda device: Clock())
    monkeypatch.setattr("gpulab.bench.ceilings.PAIRS", 2)
    monkeypatch.setattr("gpulab.bench.ceilings.MEMORY_BYTES", 1 << 16)
    return device


def bench(*arguments):
    done = CliRunner().invoke(main, ["bench", *arguments, "--runs", "1", "--warmup", "0"])
    assert "Traceback" not in done.output
    return done


SOFTMAX = ("softmax", "--sizes", "4x256", "--kernel", "online,no_max", "--backend", "raw",
           "--format", "bf16")  # fmt: skip


def test_a_row_is_told_in_gb_per_s_and_as_a_share_of_a_copy(card, tmp_path):
    file = tmp_path / "rows.jsonl"
    done = bench(*SOFTMAX, "--save", str(file))
    assert done.exit_code == 0, done.output
    (record,) = map(json.loads, file.read_text().splitlines())  # lessons are not timed
    moved = 2 * 2 * 4 * 256  # bf16 read and written once
    assert record["gb_per_s"] == pytest.approx(moved / 1e-3 * 1e-9)
    copied = 2 * bandwidth.least_bytes("copy", 1)
    assert record["bandwidth"]["of"] == "copy"
    ways = ["1 access a thread", "2 accesses a thread", "4 accesses a thread", "the driver's copy"]
    assert list(record["bandwidth"]["ways_gb_per_s"]) == ways
    assert record["bandwidth"]["moved_bytes"] == copied
    assert record["bandwidth"]["gb_per_s"] == pytest.approx(copied / 1e-3 * 1e-9)
    assert record["bandwidth"]["fraction"] == pytest.approx(moved / copied)
    assert record["environment"]["capability"] == "8.9"
    assert record["max_abs_err"] > 0  # the error beside the speed
    assert "GB/s" in done.output
    assert "of copy" in done.output
    assert "TFLOP/s" not in done.output
    assert "PASS: 1 of 1 rows pass" in done.output


def test_cross_entropy_is_compared_with_reads(card):
    done = bench("crossentropy", "--sizes", "4x256", "--kernel", "online", "--backend", "raw",
                 "--format", "bf16", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout.splitlines()[0])
    assert record["bandwidth"]["of"] == "read"
    moved = 4 * 256 * 2 + 4 * 4 + 2 * 4 * 4  # logits and labels; loss and lse
    assert record["gb_per_s"] == pytest.approx(moved * 1e-6)


class Idle(Bound):
    """Copies nothing."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.otherwise = lambda ceiling, plan: lambda: None


def test_a_copy_that_does_not_copy_fails_the_row(card, monkeypatch):
    monkeypatch.setattr("gpulab.bench.bandwidth.Bound", Idle)
    done = bench(*SOFTMAX)
    assert done.exit_code == 1
    assert "the copy timed beside it is wrong: run 0, set 0: " in done.output
    assert "elements are wrong" in done.output


def test_attention_is_told_in_tflops_against_the_tensor_cores(card):
    done = bench("attention", "--sizes", "32x48", "--causal", "--batch", "1", "--heads", "2",
                 "--head-dim", "16", "--kernel", "mma", "--format", "fp16", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    (record,) = map(json.loads, done.stdout.splitlines())
    pairs = 2 * sum(48 - 32 + i + 1 for i in range(32))
    assert record["tflops"] == pytest.approx(4 * 16 * pairs / 1e-3 * 1e-12)
    assert "bandwidth" not in record
    assert record["roofline"]["compute"]["binds"] == "mma.sync fp16"


@pytest.mark.parametrize("of", ["copy", "read"])
def test_the_yardstick_moves_what_it_says_and_is_verified(of):
    device = EmulatedDevice((8, 9))
    wanted = 2 * bandwidth.least_bytes(of, 1) * (2 if of == "copy" else 1)
    made = bandwidth.yardstick(of)(device, SimpleNamespace(l2_bytes=wanted), wanted)
    assert (made.of, made.moved_bytes) == (of, wanted)
    ways = ["1 access", "2 accesses", "4 accesses"] if of == "copy" else ["4", "2", "8 accesses"]
    assert [w.startswith(x) for w, x in zip(made.subjects, ways, strict=True)] == [True] * 3
    for subject in made.subjects.values():
        assert subject.sets == 2  # together twice the cache
        for i in range(2):
            subject.refill(i)
            assert subject.verify(i) is not None  # poison is no result
            subject.launch(i)
            assert subject.verify(i) is None
    made.free()


@pytest.mark.parametrize("of", ["copy", "read"])
def test_every_way_moves_each_byte_once(of):
    device = EmulatedDevice((8, 9), counters=True)
    size = ceiling_kernels.Size(1, 1, 2 * bandwidth.least_bytes(of, 1))
    for kernel in ceiling_kernels.memory(of):
        work = kernel.work(size)
        bound = Bound(device, kernel, work)
        sums = work.right.nbytes if of == "read" else 0
        assert bound.launch().counters["global_sector_bytes"] == work.moved_bytes + sums
        assert bound.verify() is None
        bound.free()


def test_less_than_one_access_a_thread_is_rounded_up():
    made = bandwidth.yardstick("copy")(EmulatedDevice((8, 9)), Clock(), 100)
    assert made.moved_bytes == 2 * bandwidth.least_bytes("copy", 1)


def test_attention_is_measured_in_full_and_causal_unless_one_is_asked_for():
    def shapes(causal, **more):
        options = {"batch": None, "heads": 16, "kv_heads": None, "head_dim": 128, "window": None}
        return list(bench_ops.attention_shapes("4096,16384", causal, **options | more))

    both = shapes(None)
    assert [(d["seq_q"], d["causal"]) for d in both] == [
        (4096, 0), (4096, 1), (16384, 0), (16384, 1),
    ]  # fmt: skip
    assert [d["batch"] for d in both] == [4, 4, 1, 1]
    assert [d["causal"] for d in shapes(True)] == [1, 1]
    assert [d["causal"] for d in shapes(False)] == [0, 0]
    assert {d["kv_heads"] for d in both} == {16}
    assert {d["kv_heads"] for d in shapes(True, kv_heads=4)} == {4}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rmsnorm", "--sizes", "0x4"), "--sizes 0 is outside 1 .."),
        (("rmsnorm", "--sizes", "4xnan"), "'4xnan' is no size"),
        (("softmax", "--sizes", "1x2x3"), "'1x2x3' is no size"),
        (("layernorm", "--contract", "half"), "'half' is not one of"),
        (("softmax", "--runs", "0"), "--runs 0"),
        (("softmax", "--save", "/nowhere/at/all.jsonl"), "folder /nowhere/at does not exist"),
        (("attention", "--head-dim", "300"), "head_dim = 300 is outside 1 .. 256"),
        (("attention", "--kv-heads", "3"), "kv_heads = 3 does not divide heads = 16"),
        (("attention", "--window", "0"), "--window 0 is outside 1 .."),
    ],
)
def test_bad_input_is_refused_before_a_card_is_looked_for(arguments, words):
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize("op", ["rmsnorm", "crossentropy", "attention"])
def test_without_a_card_there_is_nothing_to_time(op, monkeypatch):
    from gpulab.errors import DeviceMissingError

    def missing(*_, **__):
        raise DeviceMissingError("no card", fix="install one")

    monkeypatch.setattr("gpulab.cli.session.open_device", missing)
    done = CliRunner().invoke(main, ["bench", op])
    assert done.exit_code == 7
