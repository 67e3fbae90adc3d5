"""Temporary folders with a lock that their process holds as long as it lives: the next that makes one of a kind takes
away what a process that was killed has left."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no lock says which process lives, so that what a dead one left stays
    fcntl = None  # type: ignore[assignment]

_LOCK = ".memwall-lock"


@contextlib.contextmanager
def scratch(kind: str, forget: Callable[[Path], None] = lambda folder: None) -> Iterator[Path]:
    """An empty folder that goes in the end. ``forget`` is called with each folder before it goes, also with folders of
    dead processes."""
    prefix = f"memwall-{kind}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*") if fcntl else ():
        with contextlib.suppress(OSError), _taken(left):
            _clear(left, forget)
    folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    lock = os.open(folder / f"{_LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    if fcntl:
        fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / f"{_LOCK}.new").rename(folder / _LOCK)  # where it is seen, it is held
    try:
        yield folder
    finally:
        _clear(folder, forget)
        os.close(lock)


@contextlib.contextmanager
def _taken(folder: Path) -> Iterator[None]:
    """The lock of a folder of this user's. Raises ``OSError``: the folder has no lock, or a process holds it."""
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise PermissionError
    lock = os.open(folder / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _clear(folder: Path, forget: Callable[[Path], None]) -> None:
    try:
        forget(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
