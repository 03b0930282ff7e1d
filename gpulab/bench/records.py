"""Records as files: JSON lines with the environment they were measured in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpulab.errors import UsageError

Record = dict[str, Any]

_FIX = "give a file that --save of a bench command wrote"


def append(
    path: Path,
    records: Iterable[Record],
    environment: Mapping[str, Any],
    *,
    refused: bool = False,
) -> None:
    """Add the records that have a verdict (``refused``: the others too) to a JSON lines file."""
    with path.open("a") as lines:
        for record in records:
            if refused or record["verdict"] is not None:
                lines.write(json.dumps(record | {"environment": dict(environment)}) + "\n")


def read(path: Path) -> list[Record]:
    """The records of a JSON lines file.

    Raises:
        UsageError: it cannot be read, or a line is no JSON object; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: {getattr(error, 'strerror', None) or 'no text'}", fix=_FIX
        ) from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}:{number}: no JSON: {error.msg}", fix=_FIX) from None
        if not isinstance(record, dict):
            raise UsageError(f"{path}:{number}: not a JSON object", fix=_FIX)
        found.append(record)
    return found
