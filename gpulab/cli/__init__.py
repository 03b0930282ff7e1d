"""The command line: one click group, whose commands load what they need when they run.

``--help``, ``list``, ``formats`` and ``doctor`` work with neither a card nor CuPy nor Numba, so
nothing heavy is imported here: a command is a module of this package, named in ``COMMANDS``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from typing import Any

import click

import gpulab
from gpulab.cli.options import Group
from gpulab.errors import EXIT_INTERRUPTED, GpulabError, UsageError

COMMANDS = {
    "run": ("gpulab.cli.run", "The whole lab: formats, every kernel, what the gates catch."),
    "matmul": ("gpulab.cli.matmul", "C = A B: every kernel against float64, with gates and times."),
    "attention": (
        "gpulab.cli.attention",
        "softmax(Q K^T / sqrt(d)) V: kernels, lessons, gates, times.",
    ),
    "rmsnorm": ("gpulab.cli.rmsnorm", "RMSNorm, with or without a fused residual addition."),
    "layernorm": ("gpulab.cli.layernorm", "LayerNorm: both ways to the variance."),
    "softmax": ("gpulab.cli.softmax", "Softmax of rows: two passes or one."),
    "logsoftmax": ("gpulab.cli.logsoftmax", "Log-softmax of rows."),
    "crossentropy": ("gpulab.cli.crossentropy", "Cross entropy through the log-sum-exp."),
    "formats": ("gpulab.cli.formats", "Number formats: the table, a value, a capability."),
    "list": ("gpulab.cli.listing", "Every kernel of the lab and where it runs."),
    "explain": (
        "gpulab.cli.explain",
        "Where the error of one kernel comes from, and what it costs.",
    ),
    "bench": (
        "gpulab.cli.bench",
        "Time kernels on a card, against a library, a copy or a ceiling.",
    ),
    "check": ("gpulab.cli.check", "Judge submitted kernels: right or not, by how much, and why."),
    "exercise": ("gpulab.cli.exercise", "Kernels to write: list, show, start."),
    "doctor": ("gpulab.cli.doctor", "What is there, what is missing, how to fix it."),
}
"""Command name -> (module, short help). The module's ``command`` is the click command."""


_NO_READER = 128 + signal.SIGPIPE
"""As shells count: 128 and the signal."""
_INTERRUPTED = {
    "kind": "interrupted",
    "message": "interrupted",
    "fix": None,
    "exit_code": EXIT_INTERRUPTED,
}


class _Lab(Group):
    """Loads commands lazily and turns every GpulabError into one clear line and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run with ``standalone_mode`` semantics of our own: exit codes of gpulab.errors."""
        argv = list(kwargs.get("args") or (args[0] if args else None) or sys.argv[1:])
        as_json = "--json" in argv
        kwargs["standalone_mode"] = False
        for stream in (sys.stdout, sys.stderr):  # names of files may hold anything
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            result = super().main(*args, **kwargs)
        except GpulabError as error:
            _say(error.to_json(), as_json)
            sys.exit(error.exit_code)
        except click.exceptions.Exit as error:
            sys.exit(error.exit_code)
        except click.exceptions.NoArgsIsHelpError as error:  # a group alone: its commands
            click.echo(error.format_message(), err=True)
            sys.exit(2)
        except click.ClickException as error:
            usage = (
                error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx else ""
            )
            _say(
                {
                    "kind": "usage",
                    "message": error.format_message(),
                    "fix": _help_hint(error),
                    "exit_code": 2,
                },
                as_json,
                usage,
            )
            sys.exit(2)
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            if as_json:
                _say(_INTERRUPTED, as_json)
            sys.exit(EXIT_INTERRUPTED)
        except SystemExit as end:  # rich has a code of its own for it
            if isinstance(end.__context__, BrokenPipeError):
                sys.exit(_NO_READER)
            raise
        sys.exit(result if isinstance(result, int) else 0)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """See ``click.Group``: prints the help."""
        with _system_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """See ``click.Group``: runs a command."""
        with _system_errors():
            return super().invoke(ctx)


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """What the system does not let a command read or write is a clear line too.

    Raises:
        UsageError: a file or stdout that fails, such as on a full disk.
        click.exceptions.Exit: the reader went away (``gpulab list | head``).
    """
    try:
        yield
    except BrokenPipeError:
        _give_up_stdout()
        raise click.exceptions.Exit(_NO_READER) from None
    except OSError as error:
        raise UsageError(
            f"cannot read or write {error.filename or 'what is printed'}: "
            f"{error.strerror or error}",
            fix="see that the disk has space and that the file may be used",
        ) from None


def _help_hint(error: click.ClickException) -> str | None:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"see '{error.ctx.command_path} --help'"
    return None


def _give_up_stdout() -> None:
    """What it still holds is dropped, so that Python does not fail on it at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: dict[str, Any], as_json: bool, usage: str = "") -> None:
    try:
        if as_json:
            click.echo(json.dumps({"schema": 1, "error": error}))
            return
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _give_up_stdout()
    if usage:
        click.echo(usage, err=True)
    click.echo(f"error: {error['message']}", err=True)
    if error.get("log"):
        click.echo(str(error["log"]).rstrip(), err=True)
    if error["fix"]:
        click.echo(f"  fix: {error['fix']}", err=True)


@click.group(
    cls=_Lab,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 all passed, 1 a gate failed, 2 usage, 3 inconclusive, 4 does not build, "
    "5 timeout, 6 fault, 7 the wanted device is not there, 130 interrupted.",
)
@click.version_option(gpulab.__version__, prog_name="gpulab")
def main() -> None:
    """A numerics lab for GPU kernels: low-precision kernels checked against float64, timed, and
    explained, on a card or on an emulated device that computes the same bits."""
