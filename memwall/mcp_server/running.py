"""A call in its fork: a command whose result is kept instead of printed, within limits of memory, files and network."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memwall.cli.output import Messages, Out
from memwall.cli.parsing import CommandLineError
from memwall.core.errors import MemwallError, UsageError
from memwall.core.process import FORKS, end_if_forked
from memwall.core.progress import seldom
from memwall.mcp_server.answer import answer_of_report
from memwall.mcp_server.folder import wall_in
from memwall.mcp_server.tools import TOOLS, command_of

if TYPE_CHECKING:
    from memwall.report import Report

#: characters of a record that is kept
MOST_CHARACTERS = 64 << 20
_SCHEMA = re.compile(r'"schema": *"([^"]+)"')
#: characters of a message of progress: a line of a pipe is whole where it is short
_LINE = 300


@dataclass(frozen=True, kw_only=True)
class AskedTool:
    """A call: a tool with the words of its command line, the handle of what it will answer, and its limits."""

    tool: str
    words: tuple[str, ...]
    record: str = ""
    folder: Path = Path()
    own: Path = Path()
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class RanTool:
    """What a call came to: the answer as plain JSON types, the record as JSON, and the page."""

    answer: dict[str, Any]
    record: str
    page: str


class HeardMessages(Messages):
    """Messages of a command: lasting ones are kept as notes, all are told."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(quiet=True, no_progress=True)
        self.notes: list[str] = []
        self.tell = tell

    def say(self, message: str) -> None:
        self.notes.append(message)
        self.tell(message)

    warn = say

    def progress(self, message: str) -> None:
        self.tell(message)


class KeptOut(Out):
    """The result of a command, kept for who called it in this process."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(as_json=True)
        self.messages: HeardMessages = HeardMessages(tell)
        self.report: Report | None = None

    def show(self, report: Report, **_: Any) -> None:
        end_if_forked()
        self.report = report


class ToolRunner:
    """Answers calls; it has imported and run once what they need, so that a fork of it begins at once."""

    compiles = False

    def __init__(self) -> None:
        for name in TOOLS:
            command_of(name)
        if FORKS:
            _warm_up(self.compiles)
            gc.freeze()  # a fork collects no garbage of this process, whose pages it would copy

    def __call__(self, asked: AskedTool) -> RanTool:
        tell = _teller(asked)
        _limit_memory(asked.memory_bytes)
        os.chdir(asked.folder)
        os.environ["PWD"] = str(asked.folder)
        sys.dont_write_bytecode = True
        wall_in(asked.folder, asked.own)
        try:
            return _ran(asked, KeptOut(tell))
        except MemwallError:
            raise
        except click.ClickException as error:
            raise CommandLineError.of(error) from None
        except MemoryError:
            raise UsageError("it takes more memory than --memory-limit allows") from None
        except PermissionError as error:
            raise UsageError(str(error)) from None


class CompilingRunner(ToolRunner):
    """One that is ready for Inductor and TorchDynamo too."""

    compiles = True


class TransformersRunner(ToolRunner):
    """One that is ready for models of transformers too."""

    def __init__(self) -> None:
        super().__init__()
        with contextlib.suppress(ImportError):  # the call says what is missing
            import_module("transformers.modeling_utils")


def _warm_up(compiles: bool) -> None:
    """What the first call would import, read and compile, once for all."""
    import torch

    from memwall.frontend.targets import Workload
    from memwall.pipeline import profile, with_capture
    from memwall.report import render

    layer = Workload(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    policies = ["eager", "memwall", "ideal", *["inductor"] * (compiles and find_spec("triton") is not None)]
    made = profile(layer, mode="training", policy=policies)
    for kind in ("json", "text"):
        render(made, kind)
    if compiles:
        with_capture(made, layer, {})
    for tool, line in _WARMING.items():
        if TOOLS[tool].compiles <= compiles:
            _ran(AskedTool(tool=tool, words=line), KeptOut(lambda message: None))


#: calls that need no file, with which a process is made ready
_WARMING: Mapping[str, tuple[str, ...]] = {
    "gpus": (),
    "bound": ("--gpu=h100-sxm", "--measured=1ms", "--", "softmax(mm(bf16[64,64], bf16[64,64]), -1)"),
}


def _ran(asked: AskedTool, out: KeptOut) -> RanTool:
    from memwall.report import render_pieces

    command, tool = command_of(asked.tool), TOOLS[asked.tool]
    with command.make_context(tool.command, list(asked.words), obj=out) as context:
        command.invoke(context)
    report = out.report
    assert report is not None  # every command of a tool shows one
    if tool.only and type(report).__name__ != tool.report:
        raise UsageError(f"{asked.words[-1]} is {report.noun} and not what {asked.tool} reads; ask profile")
    record = _joined(render_pieces(report, "json"))
    if len(record) > MOST_CHARACTERS:
        out.messages.notes.append(f"the record of {len(record):,} characters is too long to keep")
        record = ""
    schema = _SCHEMA.search(record[:200])
    answer = answer_of_report(report, out.messages.notes, asked.record, schema[1] if schema else "")
    return RanTool(answer=answer, record=record, page=_joined(render_pieces(report, "text")))


def _joined(made: Any) -> str:
    return made if isinstance(made, str) else "".join(made)


def _teller(asked: AskedTool) -> Callable[[str], None]:
    """What sends a line of progress to the server: one short write into its pipe, dropped where the pipe is full."""
    pipe = os.open(asked.own / "progress", os.O_WRONLY | os.O_NONBLOCK)

    def tell(message: str) -> None:
        line = " ".join(message.split())[:_LINE]
        with contextlib.suppress(OSError):
            os.write(pipe, f"{asked.record} {line}\n".encode(errors="replace")[: 4 * _LINE])

    return seldom(tell)


def _limit_memory(most_bytes: int) -> None:
    """What this process may take; as it likes where the system has no such limit."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
