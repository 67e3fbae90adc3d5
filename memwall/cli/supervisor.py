"""The command line in a fork of its process, whose death is told: a model may crash, or end the process it runs in,
which would look like success or like a gate that failed."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Callable

from memwall.core.errors import signal_name, signals
from memwall.core.process import end_if_forked, leave

#: signals that are passed on to the fork where somebody sent them to this process; a terminal sends them to both
_PASSED = signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
#: signals that end this process like the fork
_SAME_END = (*_PASSED, *signals("SIGPIPE"))
_ON_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of prctl.h

#: whether a process can be supervised here
SUPERVISES = sys.platform == "linux"


def supervised(run: Callable[[], int], fail: Callable[[str], int]) -> int:
    """The exit code of ``run``, called in a fork; where that ends on its own, what ``fail`` returns for the sentence
    that says how."""
    awaited = {signal.SIGCHLD, *_PASSED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    told = mmap.mmap(-1, 1)  # shared with the fork, and nothing that a model closes
    parent, child = os.getpid(), os.fork()
    if not child:
        ctypes.CDLL(None).prctl(_ON_PARENTS_DEATH, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that held
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = run()
        end_if_forked()
        told[0] = True
        leave(code)
    status = _awaited(child, awaited)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return status if told[0] and status >= 0 else _death(status, fail)


def _awaited(child: int, awaited: set[signal.Signals]) -> int:
    """The exit code of a child, as ``os.waitstatus_to_exitcode`` has it; signals to this process are passed on."""
    while True:
        info = signal.sigwaitinfo(awaited)
        if info.si_signo != signal.SIGCHLD:
            if info.si_code <= 0:  # from a process, not the terminal
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _death(code: int, fail: Callable[[str], int]) -> int:
    if code >= 0:
        return fail(f"the model ended the process with os._exit({code}), before there was a result")
    if -code in _SAME_END:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if -code == signal.SIGKILL:
        return fail("the process was killed, as the system does when memory runs out")
    name = signal_name(-code)
    return fail(f"the process crashed ({name}), in the model or in a library that it calls; --debug runs it unguarded")
