"""The command line: parse, call, print. ``memwall --help`` imports no command, let alone torch."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click

from memwall._version import __version__
from memwall.cli.parsing import CommandLineError, LazyGroup
from memwall.errors import MemwallError, UsageError

INTERNAL_ERROR = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

#: Command -> its one line in the help. Each lives in the module of its name.
COMMANDS = {
    "profile": "Say where each microsecond of a model goes, on any GPU.",
    "compare": "Put one workload on several GPUs, or several profiles, side by side.",
    "report": "Render a saved profile as text, HTML, pictures or tables.",
    "gpus": "List the GPUs, or show one with its sources.",
}


@click.group(
    cls=LazyGroup,
    commands_help=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: memwall profile model.py --gpu a100 h100",
)
@click.version_option(__version__, prog_name="memwall", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def group() -> None:
    """Where the time of a PyTorch model goes on any GPU, without a GPU and without weights."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 fine; 1 a gate failed; 2 the input is wrong; 3 a device or an optional dependency is missing; 70 a bug of memwall;
    130 interrupted; 141 the reader of a pipe went away.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except CommandLineError as error:
        return _fail(str(error), UsageError.exit_code)
    except MemwallError as error:
        if debug:
            traceback.print_exc()
        return _fail(str(error), error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG):
            _silence_stdout()
            return _fail(f"cannot write the result: {error.strerror}", UsageError.exit_code)
        if debug:
            traceback.print_exc()
        what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:300]
        return _fail(f"internal error: {what} (a bug of memwall; --debug shows where)", INTERNAL_ERROR)


def _run(arguments: list[str]) -> int:
    try:
        with group.make_context("memwall", arguments) as context:
            result = group.invoke(context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return UsageError.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        raise CommandLineError.of(error) from None


def _fail(message: str, code: int) -> int:
    click.echo(f"memwall: {message}", err=True)
    return code


def _silence_stdout() -> None:
    """Leave nothing for Python to flush at exit: the pipe or the disk would raise once more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  open until the process ends
