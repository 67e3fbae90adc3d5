"""The command line: parse, call, print. ``memwall --help`` imports no command, let alone torch."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import click

from memwall.cli.parsing import COMPLETION, CommandLineError, LazyGroup
from memwall.cli.supervisor import SUPERVISES, supervised
from memwall.core.errors import MemwallError, MissingError, UsageError, message_of, signal_name, signals
from memwall.core.process import answering, leave
from memwall.core.version import __version__

INTERNAL_ERROR = 70
BROKEN_PIPE = 141

#: Title in the help -> commands under it, each with its line. Each lives in the module of its name.
COMMAND_GROUPS: Mapping[str, Mapping[str, str]] = {
    "Where the time of a model goes": {
        "profile": "Say where each microsecond of a model goes, on any GPU.",
        "compare": "Put one workload on several GPUs, or several profiles, side by side.",
        "bound": "Say how fast a kernel could be, and whether a measured time is good.",
        "fuse": "Say what fusion wins: groups, refusals, graph breaks, kernels' source.",
    },
    "Servers, layouts, and many points": {
        "serve": "Say what a server of a language model does under load.",
        "sweep": "Evaluate a model at thousands of points: GPUs, batches, precisions, layouts.",
        "search": "Find the cheapest way to serve a load, or the fastest layout of a training step.",
    },
    "What was measured": {
        "measure": "Time every kernel on this machine, next to its modeled time.",
        "drift": "Say which kernels of recorded runs got slower or faster, and since when.",
        "calibrate": "Measure what this machine reaches; write it as a hardware spec.",
        "accuracy": "Score the model against measured kernels.",
    },
    "In CI, in a browser, for an agent": {
        "gate": "Compare workloads with budgets and a baseline; for CI.",
        "report": "Render a saved profile as text, HTML, pictures or tables.",
        "open": "Show the records of a folder in a browser, each as its page, any compared.",
        "mcp": "Serve answers to a program with a language model, by the Model Context Protocol.",
    },
    "What memwall knows": {
        "gpus": "List the GPUs, or show one with its sources.",
        "clusters": "List the clusters, or show one with its links and their sources.",
        "comm": "Model collectives between the GPUs of a cluster, by message size.",
        "ops": "Say which ops are costed, fused, generated and read from traces.",
        "cache": "List or clear what is kept between runs.",
    },
}
#: command -> its one line
COMMANDS = {name: line for group in COMMAND_GROUPS.values() for name, line in group.items()}


def _completion(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    """``--install-completion`` and ``--show-completion``."""
    if shell is None or context.resilient_parsing:
        return
    from memwall.cli import completion

    name = completion.this_shell() if shell == "this" else shell
    act = completion.install if parameter.name == "install_completion" else completion.script
    click.echo(act(name, context.command))
    context.exit()


@click.group(
    cls=LazyGroup,
    groups=COMMAND_GROUPS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: memwall profile model.py --gpu a100 h100",
)
@click.version_option(__version__, prog_name="memwall", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.option(
    "--install-completion", metavar="[SHELL]", is_flag=False, flag_value="this", is_eager=True, expose_value=False,
    callback=_completion, help="Set up completion for bash, zsh or fish. [default: the shell of $SHELL]",
)  # fmt: skip
@click.option(
    "--show-completion", metavar="[SHELL]", is_flag=False, flag_value="this", is_eager=True, expose_value=False,
    callback=_completion, help="Print the script of --install-completion instead.",
)  # fmt: skip
def group() -> None:
    """Where the time of a PyTorch or JAX model goes on any GPU or TPU, without one and without weights."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 fine; 1 a gate failed; 2 the input is wrong; 3 a device or an optional dependency is missing; 70 a bug of memwall;
    129, 130, 143 ended by SIGHUP, Ctrl-C, SIGTERM; 141 the reader of a pipe went away.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in arguments
    if args is None:
        _open_standard_streams()
        answering()
    if args is None and SUPERVISES and not debug:
        return supervised(lambda: _answered(arguments), lambda said: _fail(said, UsageError.exit_code))
    if args is None and not debug:
        leave(_run_whole(arguments))
    return _run_whole(arguments)


def _answered(arguments: list[str]) -> int:
    answering()
    return _run_whole(arguments)


def _run_whole(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    interrupts = _note_interrupts()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python started (``>&-``): what goes there is dropped
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  until the process ends
        _buffer(name)
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        code = _complete() if COMPLETION in os.environ else _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        return _ended_by(interrupts) if interrupts else _fail_of_model(error)
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except CommandLineError as error:
        return _fail(str(error), UsageError.exit_code)
    except MemwallError as error:
        if interrupts:
            return _ended_by(interrupts)
        if debug:
            traceback.print_exc()
        return _fail(str(error), error.exit_code)
    except Exception as error:
        if interrupts:  # swallowed by a library that was half imported, which then failed in its own way
            return _ended_by(interrupts)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF):
            _silence_stdout()
            return _fail(f"cannot write the result: {error.strerror}", UsageError.exit_code)
        if debug:
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("memwall"):
            return _fail(f"this needs {error.name}, which is not installed", MissingError.exit_code)
        what = f"{type(error).__name__}: {next(iter(message_of(error).splitlines()), '')}"[:300]
        return _fail(f"internal error: {what} (a bug of memwall; --debug shows where)", INTERNAL_ERROR)
    except BaseException as error:  # none of ours, and no interrupt
        return _fail_of_model(error)


def _complete() -> int:
    from memwall.cli.completion import answer

    return answer(os.environ[COMPLETION], group)


#: how click 8.2 and later ends a command that needs arguments and got none; earlier ones print the help and exit
_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _run(arguments: list[str]) -> int:
    try:
        with group.make_context("memwall", arguments) as context:
            result = group.invoke(context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except _NO_ARGUMENTS as error:
        click.echo(error.ctx.get_help(), err=True)
        return UsageError.exit_code
    except click.Abort as error:  # how click passes on a KeyboardInterrupt
        raise (error.__context__ or KeyboardInterrupt()) from None
    except click.ClickException as error:
        raise CommandLineError.of(error) from None


def _fail(message: str, code: int) -> int:
    from memwall.core.structure import printable

    with contextlib.suppress(OSError):  # a terminal that is gone
        click.echo("\n".join(map(printable, f"memwall: {message}".splitlines())), err=True)
    return code


def _ended_by(signals: Sequence[int]) -> int:
    """The last line and the exit code, as a shell has it, of a command that a signal has ended."""
    said = "interrupted" if signals[-1] == signal.SIGINT else f"ended by {signal_name(signals[-1])}"
    return _fail(said, 128 + signals[-1])


def _open_standard_streams() -> None:
    """Give standard input, output and error that were closed (``>&-``) a descriptor, which else some file would get."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free


def _buffer(name: str) -> None:
    """Give an unbuffered stream (``python -u``) a buffer: without one, a write cut off by a full disk is no error."""
    stream = getattr(sys, name)
    if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
        kept = open(stream.fileno(), "w", encoding=stream.encoding, closefd=False)  # noqa: SIM115
        kept.reconfigure(line_buffering=name == "stderr" or stream.isatty())
        setattr(sys, name, kept)


def _fail_of_model(error: BaseException) -> int:
    from memwall.frontend.targets.blame import blame

    return _fail(str(blame(error, "running the model")), UsageError.exit_code)


def _note_interrupts() -> list[int]:
    """A list that fills as Ctrl-C, SIGTERM and SIGHUP come in. Each raises KeyboardInterrupt, so that what is open is
    closed and what is temporary goes; the second SIGTERM or SIGHUP ends the process at once."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        signal.default_int_handler(number, frame)

    for number in signals("SIGINT", "SIGTERM", "SIGHUP"):
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # nohup ignores one
            with contextlib.suppress(ValueError):  # not the main thread: it gets no signals
                signal.signal(number, note)
    return noted


def _silence_stdout() -> None:
    """Leave nothing for Python to flush at exit: the pipe or the disk would raise once more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  open until the process ends
