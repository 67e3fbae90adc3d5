"""What is kept between runs in the user's cache folder: text with a digest, which nobody else can have written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.core.files import write_whole

#: whether files here have owners
_OWNED = hasattr(os, "geteuid")
#: users who can write everywhere anyway
_TRUSTED = (0,)


def cache_folder() -> Path:
    """The folder of cached results about this machine: ``MEMWALL_CACHE``, or ``memwall`` in the user's cache."""
    own = os.environ.get("MEMWALL_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memwall"


def refused(path: Path) -> str:
    """Why nothing is kept in a folder, or read from a file: others may write it, or it is theirs; empty where neither
    holds."""
    try:
        return _of_others(path.stat())
    except OSError:
        return ""


def keep(path: Path, text: str) -> None:
    """Keep a text, for this user alone; where that cannot be, it is done without."""
    with contextlib.suppress(OSError, UsageError):
        _private(path.parent)
        if not refused(path.parent):
            write_whole(path, f"{_digest(text)}\n{text}", private=True)


def kept(path: Path) -> str | None:
    """The text that was kept; None where nothing was, it has changed since, or somebody else can have written it."""
    if refused(path.parent):
        return None
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        if not _of_others(os.fstat(file.fileno())):
            digest, _, text = file.read().decode().partition("\n")
            return text if digest == _digest(text) else None
    return None


def remembered(name: str, sources: Iterable[Path], make: Callable[[], Sequence[str]]) -> Sequence[str]:
    """The lines that ``make`` returns, from the cache where they were made of the same ``sources``: files, their
    contents. They are kept there under ``name``, the newest alone."""
    digest = hashlib.sha256(name.encode())
    for source in sources:
        digest.update(source.read_bytes())
    path = cache_folder() / f"{name}.kept"
    made_of, *lines = (kept(path) or "").split("\n")
    if made_of == digest.hexdigest():
        return lines
    made = make()
    keep(path, "\n".join((digest.hexdigest(), *made)))
    return made


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode()).hexdigest()


def _private(folder: Path) -> None:
    """Make a folder, with missing folders above it, for this user alone."""
    if not folder.is_dir():
        _private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _of_others(found: os.stat_result) -> str:
    """Who but this user, and the system's administrator, can write what has such a status."""
    if not _OWNED:
        return ""
    if found.st_uid not in (*_TRUSTED, os.geteuid()):
        return "it is another user's"
    return "others may write there" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""
