"""The lines of a compiler that a page has room for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

_MESSAGE = re.compile(r"^\S.*\(\d+\): (?:\w+ )?(error|warning)\b")

Groups = list[list[str]]


def groups(lines: Sequence[str]) -> Groups:
    """Each message with the lines that belong to it; what stands before the first is one too."""
    found: Groups = []
    for line in lines:
        if not found or _MESSAGE.search(line):
            found.append([])
        found[-1].append(line)
    return found


def is_error(group: Sequence[str]) -> bool:
    """No warning, and no line without a place."""
    match = _MESSAGE.search(group[0])
    return match is not None and match[1] == "error"


def errors_first(lines: Sequence[str]) -> tuple[list[str], int]:
    """The lines, warnings behind errors, and how many errors there are."""
    found = groups(lines)
    ordered = sorted(found, key=lambda group: not is_error(group))
    return [line for group in ordered for line in group], sum(map(is_error, found))


def shorten(line: str, width: int) -> Text:
    """A line of at most ``width`` columns, with an ellipsis where it is cut."""
    text = Text(line.expandtabs(4).rstrip())
    text.truncate(max(width, 1), overflow="ellipsis")
    return text


def excerpt(log: str, errors: int | None, width: int, rows: int) -> list[Text]:
    """The first messages of a log that fit, and a line about those that do not.

    Args:
        log: its lines, or the first of them.
        errors: in the whole log, None: those of ``log``.
        width: columns.
        rows: to fill at most; one line is shown in any case.

    Returns:
        Lines of one row each.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    found = groups(lines)
    there = sum(map(is_error, found))
    total = there if errors is None else errors
    if len(lines) <= rows and there >= total:
        return [shorten(line, width) for line in lines]
    kept: Groups = []
    shown: list[str] = []
    for group in found:
        if kept and len(shown) + len(group) >= rows:
            break
        kept.append(group)
        shown += group
    left = total - sum(map(is_error, kept))
    more = f"... and {left} more error{'s' if left > 1 else ''}" if left > 0 else "... and more"
    return [shorten(line, width) for line in (*shown[: max(1, rows - 1)], more)]
