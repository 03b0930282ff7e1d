"""Guard bands on a card, patterns of errors, the system-call filter: what no fixture reaches."""

import shutil
import struct
import subprocess

import numpy as np
import pytest

from gpulab.check import diagnose, patterns, sandbox
from gpulab.check import held as held_args
from gpulab.check.session import unforeseen
from gpulab.errors import FaultError
from gpulab.exercises import get
from gpulab.runtime.device import DeviceArray


class FakeCard:
    """Host memory that calls itself a card."""

    kind = "cuda"

    def upload(self, host, name=""):
        return DeviceArray(host.shape, host.dtype, host.copy(), name)

    def download(self, array):
        return array.handle.copy()

    def free(self, *arrays):
        pass


class Function:
    params = get("fp16-matmul").params


def held():
    inputs = {"a": np.ones((3, 5), np.float16), "b": np.ones((5, 2), np.float16)}
    return held_args.Held(FakeCard(), Function, inputs, {"m": 3, "n": 2, "k": 5}, 0xA5)


def test_arrays_on_a_card_lie_between_guard_bands():
    mine = held()
    np.testing.assert_array_equal(mine.inputs["a"].handle, np.ones((3, 5)))
    assert (mine.outputs["c"].handle.view(np.uint8) == 0xA5).all()
    mine.outputs["c"].handle[...] = 1.0
    mine.check_guards()


@pytest.mark.parametrize(("at", "side"), [(-1, "after"), (0, "before")])
def test_a_write_beside_an_array_is_a_fault(at, side):
    mine = held()
    size = mine.whole[2].handle.size
    mine.whole[2].handle[size - held_args.GUARD_BYTES if at else held_args.GUARD_BYTES - 1] = 0
    with pytest.raises(FaultError, match=f"1 bytes {side} the array c"):
        mine.check_guards()


@pytest.mark.parametrize(
    ("make", "slug"),
    [
        (lambda bad: bad.__setitem__(slice(32, None), True), "last-tile"),
        (lambda bad: bad.__setitem__((slice(None), slice(48, None)), True), "last-tile"),
        (lambda bad: bad.__setitem__(slice(3, None, 4), True), "every-kth-row"),
        (lambda bad: bad.__setitem__(0, True), "first-row"),
        (lambda bad: bad.__setitem__(slice(None), True), "everywhere"),
        (lambda bad: bad.__setitem__((7, 9), True), "scattered"),
    ],
)
def test_where_errors_lie(make, slug):
    bad = np.zeros((40, 56), bool)
    make(bad)
    assert patterns.locate(bad).slug == slug


def test_an_l_of_errors_is_the_last_tile():
    bad = np.zeros((40, 56), bool)
    bad[32:], bad[:, 48:] = True, True
    assert patterns.locate(bad).slug == "last-tile"


@pytest.mark.parametrize(("machine", "socket"), [("x86_64", 41), ("aarch64", 198)])
def test_the_system_call_filter(machine, socket):
    """Run the program on calls as the kernel would (seccomp(2): classic BPF)."""
    raw = sandbox.seccomp_filter(machine)
    steps = [struct.unpack_from("=HBBI", raw, 8 * i) for i in range(len(raw) // 8)]
    audit = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]

    def run(number, architecture):
        data, value, at = struct.pack("=II", number, architecture), 0, 0
        while True:
            code, yes, no, k = steps[at]
            at += 1
            if code == 0x20:
                value = struct.unpack_from("=I", data, k)[0]
            elif code in (0x15, 0x35):
                at += yes if (value == k if code == 0x15 else value >= k) else no
            else:
                return k

    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    assert run(0, audit) == allow
    assert run(socket, audit) == refuse
    assert run(435, audit) == 0x00050026
    assert run(0, 0x40000003) == kill
    assert sandbox.seccomp_filter("vax") is None


def test_the_unforeseen_shape_follows_from_the_seed():
    exercise = get("fp16-matmul")
    dims = {tuple(unforeseen(exercise, seed).dims.items()) for seed in range(50)}
    assert len(dims) > 40
    assert unforeseen(exercise, 3) == unforeseen(exercise, 3)


def test_signatures_name_the_exercises_types():
    assert "const __nv_bfloat16* a" in get("bf16-matmul").signature
    assert "const unsigned char* a" in get("fp8-matmul").signature
    assert get("fp8-matmul").headers == ()
    assert get("tiled-matmul").signature.startswith(
        'extern "C" __global__ void matmul(const float*'
    )


@pytest.mark.parametrize("fault", ["out_of_bounds", "address_space", "guard_zone"])
def test_an_access_far_off_is_out_of_bounds_however_the_card_calls_it(fault):
    """An index far outside may reach the window of shared memory: CUDA's error 717, not 700."""
    told = diagnose.of_error(FaultError("an access went wrong", fault=fault))
    assert told.slug == "out-of-bounds"
    assert "guard the" in told.fix


def linked(folder):
    """CUDA as distributions lay it out: a link in a bound folder, to a link elsewhere."""
    for name in ("usr", "etc", "opt/cuda-13/include"):
        (folder / name).mkdir(parents=True)
    (folder / "opt/cuda-13/include/cuda.h").write_text("here")
    (folder / "usr/cuda").symlink_to(folder / "etc/cuda")
    (folder / "etc/cuda").symlink_to("../opt/cuda-13")
    return folder / "usr", folder / "usr/cuda/include"


def test_links_to_what_a_submission_may_read_are_there_for_it(tmp_path):
    system, headers = linked(tmp_path.resolve())
    argv = sandbox._bound([system, headers])
    real = tmp_path.resolve() / "opt/cuda-13/include"
    assert argv == [
        "--symlink", "../opt/cuda-13", str(tmp_path.resolve() / "etc/cuda"),
        "--ro-bind", str(system), str(system), "--ro-bind", str(real), str(real),
    ]  # fmt: skip


def test_links_that_lead_round_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    folder, links = sandbox._followed(tmp_path.resolve() / "a")
    assert {p.name: target for p, target in links.items()} == {"a": "b", "b": "a"}
    assert not folder.is_dir()


@pytest.mark.skipif(sandbox.refusal() is not None, reason="Python cannot be confined here")
def test_bubblewrap_takes_links_and_what_they_lead_to(tmp_path, monkeypatch):
    system, headers = linked(tmp_path.resolve())
    readable = sandbox._readable()
    monkeypatch.setattr(sandbox, "_readable", lambda: [*readable, system, headers])
    argv = sandbox._bwrap(str(shutil.which("bwrap")), [])
    said = subprocess.run(
        [*argv, "--", "/bin/cat", str(headers / "cuda.h")], capture_output=True, check=True
    )
    assert said.stdout == b"here"
