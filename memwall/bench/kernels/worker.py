"""The process in which kernels run: ``python -m memwall.bench.kernels.worker PIPE PARENT``, started by :mod:`.workers`.

It answers one question after another until its pipe closes. It ends with its parent, also when a kernel hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from memwall.bench.kernels.messages import Copy, Ran, Rest, Run, Setup, Started, Step, Whole
from memwall.core.errors import MemwallError, MissingError

#: words of an error after which a CUDA context is of no more use
FATAL = (
    "CUDA error",
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "EXECUTION_FAILED",
    "cudaError",
)
#: words of an error that mean that memory ran out, and class names that do
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "Cannot allocate memory")
#: how the class of an error names the way a kernel ended
STATUS_OF = {"NotGenerated": "not generated", "NoReference": "skipped", "OutOfMemoryError": "out of memory",
             "MemoryError": "out of memory", "OutOfResources": "failed"}  # fmt: skip


def failure(error: BaseException) -> Ran:
    """The error of a kernel as its result."""
    text = next((line for line in str(error).splitlines() if line.strip()), "") or type(error).__name__
    status = STATUS_OF.get(type(error).__name__, "failed")
    if any(words in str(error) for words in OUT_OF_MEMORY):
        status = "out of memory"
    fatal = status == "failed" and any(words in str(error) for words in FATAL)
    named = text if status in ("not generated", "skipped") else f"{type(error).__name__}: {text}"
    return Ran(status, named[:300], fatal=fatal)


def serve(pipe: Connection[Any, Any]) -> None:
    """Answer until the pipe closes."""
    session = None
    with contextlib.suppress(EOFError):
        while True:
            question = pipe.recv()
            if isinstance(question, Setup):
                session = None  # lets go of what the one before holds
                session, answer = _start(question)
                pipe.send(answer)
            else:
                pipe.send(_answer(session, question))


def _start(setup: Setup) -> tuple[Any, Started]:
    try:
        from memwall.bench.kernels.session import Session

        session = Session(setup)
        return session, Started(session.describe())
    except MemwallError as error:
        return None, Started(error=str(error), missing=isinstance(error, MissingError))
    except Exception as error:
        return None, Started(error=f"the measuring process cannot start: {type(error).__name__}: {error}"[:300])


def _answer(session: Any, question: Any) -> Any:
    answers: Mapping[type, Callable[[Any], Any]] = {
        Run: session.run, Step: session.step, Copy: session.copy, Rest: session.rest,
        Whole: session.whole,
    }  # fmt: skip
    try:
        return answers[type(question)](question)
    except (Exception, SystemExit) as error:  # whatever a kernel or a compiler does, the next one gets its turn
        result = failure(error)
    if result.status == "failed" and isinstance(question, (Run, Step)):
        with contextlib.suppress(Exception):  # nothing more to say than the error
            groups = (question.group,) if isinstance(question, Run) else question.groups
            reason = session.lacking(groups)
            result = Ran("skipped", reason[:300]) if reason else result
    try:
        session.recover()  # the traceback is gone, and with it what it held
    except Exception:  # a broken CUDA context fails whatever is asked of it
        return replace(result, fatal=True)
    return result


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, even in the middle of a kernel."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_end_with, args=(int(arguments[1]),), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        serve(Connection(int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
