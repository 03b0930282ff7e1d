"""A compiler's log in one line: the first error, with the source line it belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpulab.errors import BuildError, DeviceMissingError
from gpulab.runtime.toolkit import Toolkit

_FRONT = re.compile(
    r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\d+(?:-D)?)?: (?P<text>.+)$",
    re.MULTILINE,
)
_PTXAS = re.compile(r"^ptxas .*?line (?P<line>\d+); error\s*: (?P<text>.+)$", re.MULTILINE)
_PTXAS_BARE = re.compile(r"^ptxas .*(?:error|fatal)\s*: (?P<text>.+)$", re.MULTILINE)
_MISSING = re.compile(r'cannot open source file "(?P<name>[^"]+)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_CUDA_HEADER = re.compile(r"^(cuda|crt/|cooperative_groups|mma\.h|vector_|device_|nv/)")


@dataclass(frozen=True)
class Place:
    """A file and line of the source."""

    file: str
    line: int


def place_of_ptx_line(ptx: str, line: int) -> Place | None:
    """The source line that line ``line`` (1-based) of a PTX text was compiled from."""
    files = {int(number): name for number, name in _FILE.findall(ptx)}
    for text in reversed(ptx.splitlines()[:line]):
        if (match := _LOC.match(text)) and int(match[1]) in files:
            return Place(files[int(match[1])], int(match[2]))
    return None


def link_error(log: str, name: str, ptx: str | None) -> BuildError:
    """The error for a failed link or assembly.

    Args:
        log: all that nvJitLink and ptxas said.
        name: what was linked.
        ptx: the PTX that was assembled, to translate a line that ptxas names.
    """
    where: Place | None = None
    if found := _PTXAS.search(log):
        text = f"ptxas: {found['text'].strip()}"
        where = place_of_ptx_line(ptx, int(found["line"])) if ptx else None
    elif bare := _PTXAS_BARE.search(log):
        text = f"ptxas: {bare['text'].strip()}"
    else:
        lines = [line for line in log.splitlines() if line.strip()]
        text = lines[0] if lines else "nvJitLink failed and said nothing"
    prefix = f"{where.file}:{where.line}" if where else name
    return BuildError(
        f"{prefix}: {text}",
        file=where.file if where else name,
        line=where.line if where else None,
        log=log,
    )


def build_error(
    log: str,
    name: str,
    entry: str,
    target: str,
    kit: Toolkit,
    ptx: Callable[[], str] | None = None,
) -> BuildError | DeviceMissingError:
    """The error for a failed compilation; of the installation, if CUDA's own headers lack one.

    Args:
        log: all that the compiler said.
        name: the source's file name.
        entry: what was to be instantiated.
        target: ``sm_89``.
        kit: the compiler.
        ptx: fetches the PTX, to translate a line that ptxas names.
    """
    where: Place | None = None
    fix: str | None = None
    if front := _FRONT.search(log):
        text = front["text"].strip()
        if front["file"] == "__nv_name_map":
            text = f"{entry} cannot be instantiated: {text}"
        else:
            where = Place(front["file"], int(front["line"]))
        missing = _MISSING.search(text)
        if missing and any(Path(front["file"]).is_relative_to(f) for f in kit.headers):
            return DeviceMissingError(
                f"the CUDA headers are incomplete: {front['file']} includes {missing['name']}, "
                "which is not installed",
                fix=kit.pip_command,
            )
        if missing and _CUDA_HEADER.match(missing["name"]):
            fix = kit.pip_command
            if not kit.headers:
                text += f" (no CUDA {kit.version[0]} headers are installed)"
    elif assembler := _PTXAS.search(log):
        text = f"ptxas for {target}: {assembler['text'].strip()}"
        if ptx is not None:
            where = place_of_ptx_line(ptx(), int(assembler["line"]))
    elif bare := _PTXAS_BARE.search(log):
        text = f"ptxas for {target}: {bare['text'].strip()}"
    else:
        text = next((line for line in log.splitlines() if line.strip()), "the compiler failed")
    prefix = f"{where.file}:{where.line}" if where else name
    return BuildError(
        f"{prefix}: {text}",
        fix=fix,
        file=where.file if where else name,
        line=where.line if where else None,
        entry=entry,
        target=target,
        log=log,
    )
