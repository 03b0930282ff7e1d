"""Records as files: JSON lines with the environment they were measured in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpulab.errors import UsageError

Record = dict[str, Any]


def check_folder(option: str, path: Path | None) -> None:
    """Refuse, before anything is measured, a file in a folder that is not there.

    Raises:
        UsageError: names the folder.
    """
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"{option}: folder {path.parent} does not exist")


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
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}:{number}: no JSON: {error.msg}") from None
        if not isinstance(record, dict):
            raise UsageError(f"{path}:{number}: not a JSON object")
        found.append(record)
    return found
