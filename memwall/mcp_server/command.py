"""``memwall mcp``: the tools for a language model, by the Model Context Protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from memwall.cli import options
from memwall.cli.output import Messages
from memwall.cli.parsing import Command
from memwall.core.errors import UsageError, need
from memwall.core.process import check_children


@click.command(
    "mcp",
    cls=Command,
    examples=(
        ("memwall mcp --folder models", "For a program that starts it, which may read one folder."),
        ("memwall mcp --transport http --port 8123", "For clients on this machine."),
    ),
)
@click.option(
    "--transport",
    type=click.Choice(("stdio", "http")),
    default="stdio",
    show_default=True,
    help="stdio: the program that starts it; http: clients on this machine that have the token.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Of http; 0 takes any that is free. [default: 0]"
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=".",
    metavar="DIR",
    help="Targets and all other files lie below it. [default: the current folder]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds that a call may take.",
)
@click.option(
    "--memory-limit",
    type=click.FloatRange(0.5),
    default=8.0,
    show_default=True,
    metavar="GB",
    help="Memory that a call may take.",
)
@options.debug
def command(transport: str, port: int | None, folder: Path, time_limit: float, memory_limit: float) -> None:
    """Serve memwall's answers to a program with a language model, by the Model Context Protocol.

    The tools are bound, profile, explain, fuse, compare, serve, gpus and trace; they take the words of the commands. An
    answer has at most 2 kB and a handle, under which the whole record is a resource. A call runs in a process of its
    own, sees files below --folder alone and no network, and is ended at its limits.
    """
    check_children()
    need("mcp", "mcp")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    if port is not None and transport != "http":
        raise UsageError("--port has no effect without --transport http")
    import anyio

    from memwall.mcp_server.calls import ServerLimits
    from memwall.mcp_server.server import over_http, over_stdio

    limits = ServerLimits(folder=folder.resolve(), time_s=time_limit, memory_bytes=round(memory_limit * 1e9))
    say = Messages().say
    served = over_stdio if transport == "stdio" else partial(over_http, port=port or 0, say=say)
    try:
        anyio.run(_quiet, partial(served, limits))
    except BaseExceptionGroup as group:  # a signal that came while tasks were ended
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from None


async def _quiet(served: Callable[[], Awaitable[None]]) -> None:
    """Serve; a task that a signal ends leaves no trace on standard error."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, told: None if _by_signal(told) else loop.default_exception_handler(told))
    await served()


def _by_signal(told: Mapping[str, Any]) -> bool:
    error = told.get("exception")
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)
