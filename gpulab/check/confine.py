"""What a worker process gives up before it touches a submission.

Limits of memory and files, its own network namespace (no network), a Landlock rule set (read the
installation, write one scratch folder), and death with its parent. Each returns whether it holds
on this system; the result lists what held.

Sources: Linux manual pages prctl(2), unshare(2), getrlimit(2), landlock(7).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_ALL = (1 << 13) - 1
"""Every file-system right of the first Landlock version."""
_FS_READ = (1 << 0) | (1 << 2) | (1 << 3)
"""Execute, read a file, list a folder."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Be killed when the process that started this one ends, however it ends.

    Args:
        parent: its id, as it was when this process was started.
    """
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request
        os._exit(1)


def limit(memory_bytes: int) -> None:
    """Bound what this process may still take of memory, bound files, and forbid core dumps.

    Data are bounded rather than the address space: where there is a card, its driver maps many
    times more than is used as soon as it is asked for its version.

    Args:
        memory_bytes: beyond what the process has now.
    """
    most = data_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = 256 << 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def data_bytes() -> int:
    """What of this process counts against a limit of data now: proc(5), VmData."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0


def no_network() -> bool:
    """Move to an empty network namespace; False where the system forbids it."""
    libc, uid, gid = _libc(), os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError:
        pass  # ids show as nobody's; the network is gone all the same
    return True


def read_only(readable: Sequence[Path], writable: Sequence[Path]) -> bool:
    """Allow reading below some folders and writing below others, nothing else.

    Returns:
        False where the kernel has no Landlock.
    """
    libc = _libc()
    if libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)) < 1:
        return False
    attribute = struct.pack("=Q", _FS_ALL)
    rules = libc.syscall(
        _LANDLOCK_CREATE, attribute, ctypes.c_size_t(len(attribute)), ctypes.c_uint32(0)
    )
    if rules < 0:
        return False
    try:
        for folders, rights in ((readable, _FS_READ), (writable, _FS_ALL)):
            for folder in folders:
                _allow(libc, rules, folder, rights)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(_LANDLOCK_RESTRICT, rules, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():  # rights of folders do not apply to a file
            rights &= (1 << 0) | (1 << 1) | (1 << 2)
        rule = struct.pack("=Qi", rights, handle)
        libc.syscall(_LANDLOCK_ADD, rules, ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(handle)
