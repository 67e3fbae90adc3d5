"""What a call may touch: files below the folder that the server was started in, and no network.

The client's words are checked before a call begins (:func:`check_paths`); in the call itself every file that Python
opens and every connection is checked again (:func:`wall_in`), since a file may name another. This keeps a client from
files; it is no sandbox for a model, whose code runs with the user's rights as under every command.
"""

from __future__ import annotations

import os
import re
import site
import socket
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memwall.core.cache import cache_folder
from memwall.core.errors import UsageError
from memwall.core.process import HOME
from memwall.core.structure import one_line

#: what stands before or behind a path in a word: ``hf:FOLDER``, ``model.py:name``, ``NAME=FILE``
_AROUND = re.compile(r"[:=,\s]")
#: folders of the system that libraries read; none has what is the user's
_OF_SYSTEM = ("/usr", "/lib", "/lib64", "/opt", "/bin", "/proc", "/sys", "/dev", "/etc/ld.so.cache")
#: settings of projects, which memwall looks for in the folders above
_SETTINGS = ("pyproject.toml", "memwall.toml")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def check_paths(text: str, folder: Path, *, in_parts: bool = True) -> None:
    """Check that a word, and where it has them its parts, lead out of no folder, links followed. Raises ``UsageError``:
    one does."""
    for each in dict.fromkeys((text, *(_AROUND.split(text) if in_parts else ()))):
        try:
            inside = (folder / each).resolve().is_relative_to(folder)
        except (OSError, ValueError, RuntimeError):  # a NUL, too long, links in a circle
            inside = False
        if not inside:
            raise UsageError(f"{one_line(text, 80)} leads out of the folder that the server was started in")


def check_file(text: str, folder: Path) -> None:
    """Check that a target is a file or a folder that is there, and no module to import. Raises ``UsageError``: it is
    none."""
    place = text.removeprefix("hf:")
    if not any(_is_there(folder / each) for each in (place, place.rpartition(":")[0]) if each):
        named = one_line(text, 80) or "an empty text"
        raise UsageError(f"{named} is no file below the folder that the server was started in")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, links in a circle
        return False


def wall_in(folder: Path, own: Path) -> None:
    """From now on this process opens what lies below ``folder``, ``own`` or its caches, reads what the system and
    Python are made of, and connects to nothing. Raises, where it tries, ``PermissionError``."""
    paths = (*sys.path, *site.getsitepackages(), *sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)
    writable = _resolved((folder, own, cache_folder(), "/dev/null", "/dev/shm"))
    readable = (*writable, *_resolved((HOME, *paths, *_OF_SYSTEM)))

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[2]
            writes = isinstance(flags, int) and flags & _WRITES
            above = os.path.basename(path) in _SETTINGS and _below(str(folder), (os.path.dirname(path),))  # noqa: PTH119, PTH120
            if not (_below(path, writable if writes else readable) or (above and not writes)):
                raise PermissionError(f"{path} lies outside of the folder that the server was started in")
        elif event in _NETWORK and getattr(arguments[0], "family", None) != getattr(socket, "AF_UNIX", 0):
            raise PermissionError("a call has no network")

    sys.addaudithook(look)


_NETWORK = ("socket.connect", "socket.sendto", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname")


def _resolved(places: Iterable[str | Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(place) for place in places if str(place)))


def _below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)
