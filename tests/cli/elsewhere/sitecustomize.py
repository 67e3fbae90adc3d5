"""Python as on another system, as ``MEMWALL_LIKE`` says: what ``macos`` or ``windows`` lacks is hidden from a process
of the tests, whose ``PYTHONPATH`` has this folder."""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import signal
import sys
from types import ModuleType
from typing import Any

#: what only Linux has
LINUX = {
    os: (
        "O_DIRECT", "O_PATH", "O_TMPFILE", "copy_file_range", "eventfd", "getrandom", "getxattr", "listxattr",
        "memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate", "removexattr", "sched_getaffinity",
        "sched_getscheduler", "sched_setaffinity", "sendfile", "setns", "setxattr", "splice", "unshare",
    ),
    signal: ("SIGCLD", "SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT", "sigtimedwait", "sigwaitinfo"),
}  # fmt: skip
#: what Windows does not have either
POSIX = {
    os: (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "chown", "fchmod", "fchown", "fork",
        "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getpgrp", "getuid", "killpg", "lchown",
        "mkfifo", "nice", "setpgid", "setsid", "sysconf", "uname", "wait", "waitid",
    ),
    signal: (
        "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP",
        "SIGUSR1", "SIGUSR2", "SIGWINCH", "alarm", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait",
    ),
}  # fmt: skip
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")


def without_files(function: Any) -> Any:
    """A function of a path that finds nothing of what the kernel says in files."""

    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *args, **kwargs)

    return call


class Library(ctypes.CDLL):
    """A library whose C functions are not those of Linux."""

    def __getattr__(self, name: str) -> Any:
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)


def hide(like: str) -> None:
    built = sys.abiflags, sys.platform, getattr(sys.implementation, "_multiarch", "")
    os.environ["_PYTHON_SYSCONFIGDATA_NAME"] = "_sysconfigdata_{}_{}_{}".format(*built)  # where this Python's own lie
    sys.platform = "darwin"
    sys.modules["_scproxy"] = proxies = ModuleType("_scproxy")  # which Python asks for there
    proxies._get_proxy_settings = proxies._get_proxies = dict
    known = os.sysconf

    def sysconf(name: Any) -> int:
        if name == "SC_AVPHYS_PAGES":
            raise ValueError("unrecognized configuration name")
        return known(name)

    os.sysconf = sysconf
    for table in (LINUX, POSIX) if like == "windows" else (LINUX,):
        for module, names in table.items():
            for name in names:
                if hasattr(module, name):
                    delattr(module, name)
    sys.modules.update(dict.fromkeys(MODULES if like == "windows" else ()))
    builtins.open = io.open = without_files(open)
    for name in ("listdir", "open", "scandir", "stat"):
        setattr(os, name, without_files(getattr(os, name)))
    ctypes.CDLL = Library


if os.environ.get("MEMWALL_LIKE"):
    hide(os.environ["MEMWALL_LIKE"])
