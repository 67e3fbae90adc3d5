"""A Python child process that answers over a pipe, each time within a limit, and reports its cause of death.

It calls one target (one instance, if it is a class) with each request, and sends back the result or the
:class:`MemwallError` that it raises. Any other exception ends it. Where each request is to find the process as it was
at first, whatever the last one did to it, each is answered in a fork (``apart``), several at once if several are sent:
what is imported is shared, only the answer comes back, and what a fork has started ends with it. It ends with its
parent in any case, even in the middle of a call: the parent holds its standard input open.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Set
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NoReturn

from memwall.core.errors import MemwallError, MissingError, UsageError, signal_name
from memwall.core.progress import listening, seldom

#: the folder that holds this package
HOME = str(Path(__file__).resolve().parents[2])
#: whether a process that has imported torch can be forked; macOS ends such a fork at its first call of a system library
FORKS = sys.platform == "linux"
_START = "from memwall.core.process import serve; serve()"
#: how long a process looks for a request before it looks for forks that have ended
_POLL_S = 0.02
#: of ``prctl(2)``: orphans below this process become its children
_PR_SET_CHILD_SUBREAPER = 36
#: how seldom a process that only answers looks for garbage: graphs stay until the answer, and each search goes through
#: them
_SELDOM = (10_000, 10, 50)
#: the process that has an answer to give; None where memwall is only a part of a program
_answering: int | None = None


def answering() -> None:
    """Say that this process answers: one that a model forks from it does not."""
    global _answering
    _answering = os.getpid()
    gc.set_threshold(*_SELDOM)


def end_if_forked() -> None:
    """End a process that a model has forked and that came back from the model's code: the answer is its parent's."""
    if _answering not in (None, os.getpid()):
        os._exit(0)


def leave(code: int) -> NoReturn:
    """End this process with what it has said and nothing else: no thread and no handler of a model's delays the end or
    changes the code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


class Lost(Exception):
    """A child that gave no answer. ``status``: ``timeout``, ``out of memory`` or ``failed``; ``code``: its exit code;
    ``last``: the last line that it wrote to standard error, where that was kept."""

    def __init__(self, status: str, message: str, code: int | None = None, last: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.last = status, code, last


def check_children() -> None:
    """Raises ``MissingError``: this system has no such children."""
    if not hasattr(os, "killpg"):  # nor can a pipe be handed on
        raise MissingError("this runs the model in a process of its own, which needs Linux or macOS; use WSL here")


class Child:
    """A running process; :meth:`stop` kills it and its children.

    Args:
        target: what is called; ``module:name`` where this process is not to import it.
        environment: its variables; see :func:`environment`.
        folder: its working folder.
        own_path: leave the working folder out of ``sys.path``.
        shown: what it prints goes to standard error; else it is kept for the last line.
        apart: each request is answered in a fork of the process; see :data:`FORKS`.
        heard: what forks tell is heard too, ten lines a second at most; :meth:`fileno` is then readable for a line.

    Attributes:
        answered: the number of the request that the last answer, or error, belongs to; None where the process was lost.

    Raises:
        MissingError: the system is Windows.
        OSError: it cannot be started in that folder.
    """

    def __init__(
        self,
        target: Callable[..., Any] | str,
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        own_path: bool = False,
        shown: bool = False,
        apart: bool = False,
        heard: bool = False,
    ) -> None:
        check_children()
        self.answered: int | None = None
        self._sent = 0
        mine, theirs = multiprocessing.Pipe()
        self._apart = apart and FORKS
        self._pipe: Connection[Any, Any] = mine
        self._kept = None if shown else tempfile.TemporaryFile()  # noqa: SIM115  closed by stop()
        output = sys.stderr if shown and _has_descriptor(sys.stderr) else subprocess.DEVNULL
        options, how = ["-P"] * own_path, ["apart"] * self._apart + ["heard"] * heard
        named = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
        try:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-c", _START, str(theirs.fileno()), named, *how],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=folder,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=self._kept,
            )
        except OSError:
            self._close(None)
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs still."""
        return self._process.poll() is None

    def fileno(self) -> int:
        """What becomes readable when there is an answer, for :func:`multiprocessing.connection.wait`."""
        return self._pipe.fileno()

    def send(self, *question: Any) -> int:
        """Send a request, and give its number; :meth:`receive` notices a dead process."""
        self._sent += 1
        with contextlib.suppress(OSError):
            self._pipe.send(question)
        return self._sent

    def cancel(self, number: int) -> None:
        """End the fork that answers a request; :meth:`receive` says that it was killed. One that has answered is let
        be, and of a process that answers itself :meth:`stop` is the only end."""
        with contextlib.suppress(OSError):
            self._pipe.send(number)

    def receive(self, limit_s: float | None, say: Callable[[str], None] = lambda line: None) -> Any:
        """The next answer, whichever request it belongs to; None waits without a limit. ``say`` is called with the
        lines that the target tells (:mod:`memwall.core.progress`) until then; one ``apart`` where it is ``heard``.

        Raises:
            MemwallError: what the target has raised.
            Lost: the process ended, or took longer than the limit.
        """
        self.answered = None
        try:
            number = self._next(limit_s, say)
            raised, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        self.answered = number
        if raised is None:  # the fork ended without an answer
            raise _lost(answer, "")
        if raised:
            raise answer
        return answer

    def _next(self, limit_s: float | None, say: Callable[[str], None]) -> int:
        """The number before the next answer; each line before it is said."""
        began = time.monotonic()
        while True:
            left_s = None if limit_s is None else max(began + limit_s - time.monotonic(), 0)
            if not self._pipe.poll(left_s):
                raise Lost("timeout", f"took longer than its limit of {limit_s:.0f} s")
            found: int | str = self._pipe.recv()
            if isinstance(found, int):
                return found
            say(found)

    def ask(self, limit_s: float | None, *question: Any, say: Callable[[str], None] = lambda line: None) -> Any:
        """Send a request and wait for the answer; see :meth:`receive`."""
        self.send(*question)
        return self.receive(limit_s, say)

    def _lost(self) -> Lost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        return _lost(self._process.returncode, self._last_line())

    def _last_line(self) -> str:
        if self._kept is None:
            return ""
        self._kept.seek(0)
        lines = self._kept.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def stop(self) -> None:
        """Kill the process and its children."""
        if self._apart:  # first the forks, whose parent then waits for them: no zombie is left
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close(self._process.stdin)

    def _close(self, lifeline: IO[bytes] | None) -> None:
        for end in (self._pipe, self._kept, lifeline):
            if end is not None:
                end.close()


def _lost(code: int | None, last: str) -> Lost:
    """The cause of a death by its exit code."""
    if code == -signal.SIGKILL:
        return Lost("out of memory", "the process was killed by signal 9 (out of memory?)", code)
    if code is not None and code < 0:
        return Lost("failed", f"the process was killed by signal {-code} ({signal_name(-code)})", code)
    message = f"the process ended with exit code {code}" + (f": {last[:200]}" if last else "")
    return Lost("failed", message, code, last)


def environment() -> dict[str, str]:
    """The variables of this process; a child finds this package, wherever it runs."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (HOME, os.environ.get("PYTHONPATH"))))}


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


# -- in the child ------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer until the pipe closes."""
    descriptor, target, apart = int(sys.argv[1]), sys.argv[2], "apart" in sys.argv[3:]
    hears, told = multiprocessing.Pipe(duplex=False) if "heard" in sys.argv[3:] else (None, None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    answering()
    lifeline, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # what is called may read its standard input, and must not read the lifeline
    if apart:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends the forks; then the pipe closes
    else:
        _end_with(lifeline)
    module, _, name = target.partition(":")
    answer = getattr(import_module(module), name)
    if isinstance(answer, type):
        answer = answer()
    own = _adopting() if apart else set[int]()
    pipe: Connection[Any, Any] = Connection(descriptor)
    number = 0
    forks: dict[int, tuple[int, IO[bytes]]] = {}  # process → the number of its request, and where its answer will be
    while True:
        if pipe.poll(_POLL_S if forks else None):
            try:
                question = pipe.recv()
            except (EOFError, ConnectionResetError):
                break
            if isinstance(question, int):  # a request that nobody waits for any more
                for process in [process for process, (asked, _) in forks.items() if asked == question]:
                    os.kill(process, signal.SIGKILL)  # it is a zombie at least: nobody has waited for it yet
                continue
            number += 1
            # what the target raises ends this process, or the fork
            if apart:
                process, place = _forked(answer, question, lifeline, pipe, told)
                forks[process] = number, place
            else:
                with listening(lambda line: _pass_on(pipe, line)):
                    made = pickle.dumps(_answered(answer, question))
                _reply(pipe, number, made)
        waited = [os.waitpid(process, os.WNOHANG) for process in forks]
        while hears is not None and hears.poll():
            _pass_on(pipe, hears.recv())
        for process, status in waited:
            if process:
                asked, place = forks.pop(process)
                _end_all_but(own | forks.keys())
                _reply(pipe, asked, _made(place, os.waitstatus_to_exitcode(status)))
    if apart:
        _end_all_but(own)


def _adopting() -> set[int]:
    """The children of this process, which from now on is the parent of every descendant that loses its own (Linux)."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return set(_children())


def _children() -> list[int]:
    """The children of this process, none where the system does not list them."""
    found = []
    for place in Path("/proc", "self", "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(number) for number in place.read_text().split()]
    return found


def _end_all_but(kept: Set[int]) -> None:
    """End the children that a fork has left, and theirs, which become children when their parent ends."""
    while left := [number for number in _children() if number not in kept]:
        for number in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)


def _reply(pipe: Connection[Any, Any], number: int, made: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(number)
        pipe.send_bytes(made)


def _silent(line: str) -> None:
    """Nobody hears a line."""


def _pass_on(pipe: Connection[Any, Any], line: str) -> None:
    """A line of progress; what the target has forked is not heard."""
    if _answering == os.getpid():
        with contextlib.suppress(OSError):
            pipe.send(line)


def _answered(answer: Callable[..., Any], question: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        given = answer(*question)
        end_if_forked()
        return False, given
    except MemwallError as error:
        kind = next(kind for kind in (MissingError, UsageError, MemwallError) if isinstance(error, kind))
        return True, kind(str(error))  # plain: one that says more need not survive a pipe


def _forked(
    answer: Callable[..., Any],
    question: tuple[Any, ...],
    lifeline: int,
    pipe: Connection[Any, Any],
    told: Connection[Any, Any] | None,
) -> tuple[int, IO[bytes]]:
    """A fork of this process that answers, and the file that its pickled answer will be in; ``told`` gets what it
    tells."""
    place = tempfile.TemporaryFile()  # noqa: SIM115  closed when it is read
    process = os.fork()
    if not process:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        pipe.close()  # its end says that the process is lost
        answering()
        _end_with(lifeline)
        code = 1
        try:
            with listening(_silent if told is None else seldom(partial(_pass_on, told))):
                place.write(pickle.dumps(_answered(answer, question)))
            place.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:  # no handler at exit of what was called, and no thread of it, delays or changes the answer
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)
    return process, place


def _made(place: IO[bytes], code: int) -> bytes:
    """The pickled answer of a fork; ``(None, exit code)`` where it ended without one."""
    with place:
        place.seek(0)
        made = place.read()
    return made if made and not code else pickle.dumps((None, code))


def _end_with(lifeline: int) -> None:
    """End this process when the other end of the lifeline is closed."""

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
