"""Calls of tools, each in a fork of a process that is ready for it: so many at once, each within its limits, and ended
where nobody waits for it any more."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from memwall.core.errors import MemwallError, UsageError
from memwall.core.process import FORKS, Child, Lost, environment
from memwall.frontend.targets.target import split_target
from memwall.mcp_server.folder import check_file, check_paths
from memwall.mcp_server.records import SCHEME, Records
from memwall.mcp_server.running import AskedTool, CompilingRunner, RanTool, ToolRunner, TransformersRunner
from memwall.mcp_server.tools import TOOLS, check, is_target, starts_server, texts_in, words

#: the most calls at a time, and that wait; further ones are refused
MOST_AT_ONCE, MOST_WAITING = 8, 256
#: what tells a client how far a call is
Say = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """The folder that calls see, and what one of them may take."""

    folder: Path
    time_s: float = 300.0
    memory_bytes: int = 8 << 30


@dataclass
class _Waiting:
    """A call that runs: set when its answer, or the error, is there."""

    done: anyio.Event = field(default_factory=anyio.Event)
    made: RanTool | MemwallError | None = None


class _Ready:
    """A process of a kind that is ready for calls, with the calls that it answers by number."""

    def __init__(self, target: type[ToolRunner], own: Path) -> None:
        self.child = Child(target, _variables(own), folder=Path("/"), own_path=True, apart=True)
        self.waiting: dict[int, _Waiting] = {}

    def end(self, reason: MemwallError) -> None:
        """Stop it, and tell all that wait."""
        anyio.notify_closing(self.child.fileno())
        self.child.stop()
        for each in self.waiting.values():
            each.made = reason
            each.done.set()


def _variables(own: Path) -> dict[str, str]:
    """The variables of a process whose calls write below ``own``, and ask no hub for anything."""
    caches = {name: str(own / name.lower()) for name in ("TMPDIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR", "TORCH_HOME")}
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
    for path in caches.values():
        Path(path).mkdir(mode=0o700, exist_ok=True)
    return {**environment(), **caches, **offline}


def _kind_of(asked: AskedTool) -> type[ToolRunner]:
    """What has imported what a call needs."""
    if TOOLS[asked.tool].compiles:
        return CompilingRunner
    return TransformersRunner if any(word.startswith("hf:") for word in asked.words) else ToolRunner


class ToolCalls:
    """What a server asks its tools; ``group`` runs what waits for answers, and ``own`` is a private folder."""

    def __init__(self, limits: ServerLimits, own: Path, group: TaskGroup) -> None:
        self.records = Records(own)
        self._limits, self._own, self._group = limits, own, group
        self._ready: dict[type[ToolRunner], _Ready] = {}
        self._slots = anyio.Semaphore(min(os.cpu_count() or 1, MOST_AT_ONCE) if FORKS else 1)
        self._inside = 0
        self._say: dict[str, Say] = {}

    def start(self) -> None:
        """Begin to import what most calls need, and to pass on what calls tell."""
        os.mkfifo(self._own / "progress", 0o600)
        pipe = os.open(self._own / "progress", os.O_RDWR | os.O_NONBLOCK)
        self._group.start_soon(self._tell, pipe)
        if FORKS:  # else a process is of one call
            self._group.start_soon(self._begin)

    async def _begin(self) -> None:
        """Start what most calls need, and when it answers what takes longer to import."""
        with contextlib.suppress(MemwallError):
            await self._made(self._asked("gpus", (), Records.handle()))
        self._process(CompilingRunner)

    def stop(self) -> None:
        """End every process, all at once: a client does not wait long."""
        for ready in self._ready.values():
            anyio.notify_closing(ready.child.fileno())
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda ready: ready.child.stop(), self._ready.values()))
        self._ready.clear()

    async def ask(self, name: str, given: Mapping[str, Any], say: Say) -> dict[str, Any]:
        """The answer of a tool; the record is kept. A call that is cancelled ends its process.

        Raises:
            MemwallError: as the command; an option, a path or a limit is wrong.
        """
        check(name, given)
        line = words(name, self._checked(name, given))
        if self._inside >= MOST_WAITING:
            raise UsageError(f"{MOST_WAITING} calls wait already; ask again when some are answered")
        self._inside += 1
        handle = Records.handle()
        try:
            async with self._slots:
                self._say[handle] = say
                made = await self._made(self._asked(name, line, handle))
        finally:
            self._inside -= 1
            self._say.pop(handle, None)
        if made.record:
            self.records.keep(handle, name, made.record, made.page)
        return made.answer

    def _asked(self, name: str, line: Sequence[str], handle: str) -> AskedTool:
        limits = self._limits
        within: Any = {"folder": limits.folder, "own": self._own, "memory_bytes": limits.memory_bytes}
        return AskedTool(tool=name, words=tuple(line), record=handle, **within)

    def _checked(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a client gave, a handle replaced by its file. Raises ``UsageError``: a word leads out of the folder, a
        target is no file, or there is no such record."""
        for word, text in texts_in(given):
            if not text.startswith(SCHEME):
                names = is_target(name, word)
                is_written_out = names and split_target(text).kind == "expression"  # whose / divides
                check_paths(text, self._limits.folder, in_parts=not is_written_out)
                if names and not is_written_out and not starts_server(name, word, text):
                    check_file(text, self._limits.folder)
        return {word: self._filed(value) for word, value in given.items()}

    def _filed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._filed(each) for each in value]
        is_handle = isinstance(value, str) and value.startswith(SCHEME)
        return str(self.records.file_of(value)) if is_handle else value

    def _said(self, error: MemwallError) -> MemwallError:
        """An error that names records by their handles and not by the server's files."""
        return UsageError(re.sub(rf"{re.escape(str(self._own))}/(\w+)\.json", rf"{SCHEME}\1", str(error)))

    async def _made(self, asked: AskedTool) -> RanTool:
        ready = self._process(_kind_of(asked))
        number, call = ready.child.send(asked), _Waiting()
        ready.waiting[number] = call
        try:
            with anyio.fail_after(self._limits.time_s):
                await call.done.wait()
        except TimeoutError:
            limit = f"{self._limits.time_s:g} s"
            raise UsageError(f"it took longer than {limit}, the --time-limit of the server") from None
        finally:
            ready.waiting.pop(number, None)
            if not FORKS:  # it has seen a call
                self._drop(ready, UsageError("it was stopped"))
            elif not call.done.is_set():
                ready.child.cancel(number)
        if isinstance(call.made, MemwallError):
            raise self._said(call.made)
        assert call.made is not None
        return call.made

    def _drop(self, ready: _Ready, reason: MemwallError) -> None:
        for kind in [kind for kind, each in self._ready.items() if each is ready]:  # none where it has been dropped
            del self._ready[kind]
            ready.end(reason)

    def _process(self, kind: type[ToolRunner]) -> _Ready:
        """The process that is ready for calls of a kind; starts one if needed."""
        if kind not in self._ready:
            self._ready[kind] = _Ready(kind, self._own)
            self._group.start_soon(self._receive, self._ready[kind])
        return self._ready[kind]

    async def _receive(self, ready: _Ready) -> None:
        """Pass on the answers of a process until it ends."""
        while True:
            try:
                await anyio.wait_readable(ready.child.fileno())
            except (OSError, ValueError, anyio.ClosedResourceError):  # it was stopped
                return
            made: RanTool | MemwallError
            try:
                made = ready.child.receive(None)
            except MemwallError as error:
                made = error
            except Lost as lost:
                if ready.child.answered is None:
                    self._drop(ready, UsageError(f"the process that answers ended: {lost}"))
                    return
                made = UsageError(f"running it: {lost}")
            except Exception as error:  # what a model has made of its answer
                self._drop(ready, UsageError(f"the answer cannot be read: {type(error).__name__}"))
                return
            if call := ready.waiting.get(ready.child.answered or 0):
                call.made = made
                call.done.set()

    async def _tell(self, pipe: int) -> None:
        """Pass on lines of progress, each to the client of its call."""
        try:
            while True:
                await anyio.wait_readable(pipe)
                for line in os.read(pipe, 1 << 16).decode(errors="replace").splitlines():
                    handle, _, message = line.partition(" ")
                    if (say := self._say.get(handle)) is not None:
                        with contextlib.suppress(Exception):  # a client that is gone
                            await say(message)
        finally:
            os.close(pipe)
