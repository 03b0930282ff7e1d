"""Options that commands share, and the checks of their values."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gpulab.errors import UsageError

PAGE_WIDTH = 100
"""Columns where there is no terminal."""

F = TypeVar("F", bound=Callable[..., Any])

MAX_DIM = (1 << 31) - 1
"""Kernels take dims as int32; what the operation and the memory allow is asked after that."""


class Group(click.Group):
    """Commands by name; to a misspelt one the error says what was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See ``click.Group``.

        Raises:
            UsageError: no such command.
        """
        names = self.list_commands(ctx)
        if args[0] in names or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(args[0], names, n=1)
        meant = f"did you mean '{close[0]}'? " if close else ""
        raise UsageError(
            f"No such command {args[0]!r}.", fix=f"{meant}see '{ctx.command_path} --help'"
        )


def device_options(command: F) -> F:
    """``--device``, ``--capability``, ``--sanitize``, ``--counters``."""
    for option in (
        click.option(
            "--counters",
            is_flag=True,
            help="Emulated: show all counters.",
        ),
        click.option("--sanitize", is_flag=True, help="Emulated: detect races too (slower)."),
        click.option(
            "--capability",
            metavar="X.Y",
            help="Capability the emulated device has (7.5 ... 12.0; default 8.9).",
        ),
        click.option(
            "--device",
            type=click.Choice(["auto", "cuda", "emulated"]),
            default="auto",
            show_default=True,
            help="Where kernels run; auto: a usable card, else the emulated device.",
        ),
    ):
        command = option(command)
    return command


def case_options(command: F) -> F:
    """``--kernel``, ``--backend``, ``--format``: which rows."""
    for option in (
        click.option(
            "--format", "format_", metavar="NAME[,NAME]", help="Only rows of these formats."
        ),
        click.option(
            "--backend",
            type=click.Choice(["raw", "numba", "library"]),
            help="Only rows of this backend.",
        ),
        click.option(
            "--kernel", metavar="NAME[,NAME]", help="Only these kernels (see 'gpulab list')."
        ),
    ):
        command = option(command)
    return command


def output_options(command: F) -> F:
    """``--seed``, ``--json``, ``--quiet``."""
    for option in (
        click.option("--quiet", is_flag=True, help="Only the verdict."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout."),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs."),
    ):
        command = option(command)
    return command


def check_seed(seed: int) -> int:
    """Seeds are 0 .. 2^32 - 1.

    Raises:
        UsageError: outside.
    """
    if not 0 <= seed < 1 << 32:
        raise UsageError(f"--seed {seed} is outside 0 .. 4294967295", fix="for example --seed 1")
    return seed


def check_output(option: str, path: Path | None) -> None:
    """Refuse, before anything is computed, a file that cannot be written in the end.

    Raises:
        UsageError: no name, a folder, in a folder that is not there, or not writable.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder", fix=f"{option} {path / 'FILE'}")
    if not path.parent.is_dir():
        raise UsageError(
            f"{option}: folder {path.parent} does not exist", fix=f"mkdir -p '{path.parent}'"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(
            f"{option}: {path} cannot be written", fix="name a file in a folder of yours"
        )


def check_dim(name: str, value: int) -> int:
    """A size of an operation: 1 .. MAX_DIM.

    Raises:
        UsageError: outside; names the option and the limit.
    """
    if not 1 <= value <= MAX_DIM:
        raise UsageError(f"{name} {value} is outside 1 .. {MAX_DIM}", fix=f"for example {name} 256")
    return value


def check_runs(runs: int, warmup: int) -> None:
    """Timed and untimed runs of a row.

    Raises:
        UsageError: outside 1 .. 10000, or 0 .. 10000.
    """
    if not 1 <= runs <= 10_000 or not 0 <= warmup <= 10_000:
        raise UsageError(
            f"--runs {runs} --warmup {warmup}: runs 1 .. 10000, warmup 0 .. 10000",
            fix="leave both out for 10 and 3",
        )


def parse_sizes(text: str, names: Sequence[str], example: str) -> list[dict[str, int]]:
    """``8x16,32``: one dict of the names a part; a single number stands for all of them.

    Raises:
        UsageError: a part is no such size, or outside 1 .. MAX_DIM.
    """
    found = []
    for part in text.split(","):
        try:
            sizes = [int(size) for size in part.split("x")]
        except ValueError:
            sizes = []
        if len(sizes) == 1:
            sizes *= len(names)
        if len(sizes) != len(names):
            raise UsageError(
                f"--sizes {text!r}: {part!r} is no size", fix=f"for example --sizes {example}"
            )
        found.append(
            {name: check_dim("--sizes", size) for name, size in zip(names, sizes, strict=True)}
        )
    return found


def page_width() -> int:
    """Columns of a page: the terminal's, or those that COLUMNS says."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal or "COLUMNS" in os.environ else PAGE_WIDTH
