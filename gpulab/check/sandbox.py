"""Runs a Numba submission's module in a bubblewrap sandbox, from which only PTX comes back.

Importing a Python file executes it. The sandbox has no network, no other process, no file but the
interpreter, the lab and the submission, and a system-call filter; without it such a submission is
refused unless the user trusts it.

Sources: bubblewrap(1); seccomp(2), "struct sock_filter"; Linux system-call tables.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpulab.check.client import Channel, command, environment, python_path
from gpulab.errors import BuildError, UsageError

MEMORY_BYTES = 2 << 30
"""Address space of the child; importing Numba and compiling a kernel takes less than half."""

_ARCHITECTURES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kexec_load": 246,
            "init_module": 175, "finit_module": 313, "delete_module": 176, "mount": 165,
            "umount2": 166, "pivot_root": 155, "bpf": 321, "perf_event_open": 298, "keyctl": 250,
            "add_key": 248, "request_key": 249, "userfaultfd": 323, "io_uring_setup": 425,
            "io_uring_enter": 426, "io_uring_register": 427, "unshare": 272, "setns": 308,
            "socket": 41, "personality": 135, "open_by_handle_at": 304,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kexec_load": 104,
            "init_module": 105, "finit_module": 273, "delete_module": 106, "mount": 40,
            "umount2": 39, "pivot_root": 41, "bpf": 280, "perf_event_open": 241, "keyctl": 219,
            "add_key": 217, "request_key": 218, "userfaultfd": 282, "io_uring_setup": 425,
            "io_uring_enter": 426, "io_uring_register": 427, "unshare": 97, "setns": 268,
            "socket": 198, "personality": 92, "open_by_handle_at": 265,
        },
    ),
}  # fmt: skip
"""Audit number, and the system calls that are refused, by machine."""

_LOAD, _JUMP_EQ, _JUMP_GE, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_CLONE3 = 435  # its flags are behind a pointer: refused, so that libc uses clone
_X32 = 0x40000000


def seccomp_filter(machine: str) -> bytes | None:
    """The filter as bubblewrap reads it; None where the machine's calls are not known."""
    if machine not in _ARCHITECTURES:
        return None
    audit, refused = _ARCHITECTURES[machine]

    def op(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
        return struct.pack("=HBBI", code, jump_true, jump_false, value)

    program = [
        op(_LOAD, 0, 0, 4),  # the architecture
        op(_JUMP_EQ, 1, 0, audit),
        op(_RETURN, 0, 0, _KILL),
        op(_LOAD, 0, 0, 0),  # the number
    ]
    if machine == "x86_64":
        program += [op(_JUMP_GE, 0, 1, _X32), op(_RETURN, 0, 0, _KILL)]
    program += [op(_JUMP_EQ, 0, 1, _CLONE3), op(_RETURN, 0, 0, _ENOSYS)]
    for number in sorted(refused.values()):
        program += [op(_JUMP_EQ, 0, 1, number), op(_RETURN, 0, 0, _EPERM)]
    program.append(op(_RETURN, 0, 0, _ALLOW))
    return b"".join(program)


@lru_cache(maxsize=1)
def refusal() -> str | None:
    """Why a Python submission cannot be confined here; None where it can."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "bubblewrap (bwrap) is not installed"
    if seccomp_filter(platform.machine()) is None:
        return f"no system-call filter for {platform.machine()}"
    try:
        tried = subprocess.run(
            [*_bwrap(bwrap, []), "--", sys.executable, "-I", "-c", "print(1)"],
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    if tried.returncode != 0:
        said = tried.stderr.decode(errors="replace").strip().splitlines()
        return f"bubblewrap cannot confine here: {said[-1] if said else tried.returncode}"
    return None


def _readable() -> list[Path]:
    """The interpreter, its packages, the CUDA parts and the lab: nothing of the user's."""
    from gpulab.runtime import sources, toolkit

    package = Path(__file__).resolve().parents[1]
    kit = toolkit.default()
    paths = sysconfig.get_paths()
    wanted = [
        Path("/usr"),
        Path(sys.base_prefix),
        Path(sys.prefix),
        Path(paths["purelib"]),
        Path(paths["stdlib"]),
        kit.nvrtc.parent,
        *kit.headers,
        package,
        sources.root(),
        *python_path(),
    ]
    # A folder of mounts must not hide a user's files behind it: "/" and a home are never bound.
    never = (Path("/"), Path.home().resolve())
    return [p for p in dict.fromkeys(wanted) if p.is_dir() and p.resolve() not in never]


def _followed(path: Path) -> tuple[Path, dict[Path, str]]:
    """What a path is without links, and the links on the way: place and what each says."""
    at, todo, links = Path("/"), list(path.parts[1:]), dict[Path, str]()
    while todo:
        here = Path(os.path.normpath(at / todo.pop(0)))
        if here.is_symlink() and here not in links:
            links[here] = os.readlink(here)
            at, todo = Path("/"), [*(at / links[here]).parts[1:], *todo]
        else:
            at = here
    return at, links


def _bound(paths: list[Path]) -> list[str]:
    """Arguments that bind folders where they lie, links on the way to them where they are."""
    links: dict[Path, str] = {}
    folders: dict[Path, None] = {}
    for path in paths:
        folder, on_the_way = _followed(path)
        folders[folder] = None
        links |= on_the_way
    argv = []
    for place, target in links.items():
        if not any(place.is_relative_to(folder) for folder in folders):
            argv += ["--symlink", target, str(place)]
    for folder in folders:
        argv += ["--ro-bind", str(folder), str(folder)]
    return argv


def _bwrap(bwrap: str, files: list[tuple[Path, str]], seccomp: int | None = None) -> list[str]:
    argv = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    # First, so that a lab or an interpreter below /tmp is bound into the empty one.
    argv += ["--proc", "/proc", "--dev", "/dev", "--size", str(256 << 20), "--tmpfs", "/tmp"]
    system = [Path(folder) for folder in ("/bin", "/lib", "/lib64") if os.path.isdir(folder)]
    argv += _bound([*system, *_readable()])
    for file in ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"):
        argv += ["--ro-bind-try", file, file]
    for source, place in files:
        argv += ["--ro-bind", str(source), place]
    argv += ["--chdir", "/tmp"]
    if seccomp is not None:
        argv += ["--seccomp", str(seccomp)]
    return argv


def python_to_ptx(
    path: Path, message: dict[str, Any], seconds: float, *, trusted: bool
) -> tuple[dict[str, Any], dict[str, bool]]:
    """Compile a Python submission to PTX in a process of its own.

    Args:
        path: the file.
        message: entry, params and capability for the child.
        seconds: wall-clock limit.
        trusted: run it unconfined where it cannot be confined.

    Returns:
        The child's answer (ptx, entry), and which confinements held.

    Raises:
        UsageError: it cannot be confined here and is not trusted.
        BuildError: Numba refuses it.
        KernelTimeoutError: it took too long.
    """
    why = refusal()
    if why is not None and not trusted:
        raise UsageError(
            f"{path.name}: importing a Python submission executes it, and it cannot be confined "
            f"here: {why}",
            fix="install bubblewrap (apt install bubblewrap), or give --trust-python for a file "
            "that you have read",
            refused=True,
        )
    doing = f"compiling {path.name} with Numba"
    with tempfile.TemporaryDirectory(prefix="gpulab-check-") as scratch:
        copy = Path(scratch) / path.name
        shutil.copyfile(path, copy)
        if why is not None:
            sent = {**message, "path": str(copy), "memory_bytes": MEMORY_BYTES}
            channel = Channel(command("python", scratch), environment(scratch), scratch)
            held = {"sandbox": False, "no network": False}
        else:
            place = f"/submission/{path.name}"
            sent = {**message, "path": place, "memory_bytes": MEMORY_BYTES}
            channel = _confined(copy, place, scratch)
            held = {"sandbox": True, "no network": True}
        try:
            answer, _ = channel.ask(sent, None, seconds, doing)
        finally:
            channel.kill()
    if not isinstance(answer.get("ptx"), str) or not isinstance(answer.get("entry"), str):
        raise BuildError(f"{path.name}: the child process sent no PTX back")
    return answer, held


def _confined(copy: Path, place: str, scratch: str) -> Channel:
    bwrap = shutil.which("bwrap")
    assert bwrap is not None  # refusal() saw it
    program = seccomp_filter(platform.machine())
    assert program is not None
    with tempfile.TemporaryFile() as rules:
        rules.write(program)
        rules.flush()
        rules.seek(0)
        argv = [*_bwrap(bwrap, [(copy, place)], rules.fileno()), "--", *command("python", "/tmp")]
        env = {**environment("/tmp"), "NUMBA_CACHE_DIR": "/tmp"}
        channel = Channel(argv, env, scratch, (rules.fileno(),))
    channel.folder = str(Path(place).parent)
    return channel
