"""When a measurement ran, and of which code: what tells two runs of one workload apart beside the device's versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memwall.core.git import head_of
from memwall.core.version import __version__
from memwall.frontend.targets.target import is_saved, split_target
from memwall.record.profile import Profile

#: how a time in UTC is written, so that times sort as text
TIME = "%Y-%m-%dT%H:%M:%SZ"


def origin_of(target: Any) -> dict[str, Any]:
    """Keys of a measurement's environment: ``time`` (UTC, such as ``2026-11-22T05:24:55Z``), ``memwall`` (its version),
    and of a target in a git repository ``commit`` (the full hash) and ``changes`` (whether tracked files differed from
    it, or the target's file is in no commit). A saved profile says of no commit: its code may be any."""
    now = datetime.now(UTC).strftime(TIME)
    found: dict[str, Any] = {"time": now, "memwall": __version__}
    if isinstance(target, Profile) or (isinstance(target, (str, Path)) and is_saved(str(target))):
        return found
    file = _file_of(target)
    head = head_of(file.parent, file) if file else head_of(Path.cwd())
    return found | ({"commit": head[0], "changes": head[1]} if head else {})


def _file_of(target: Any) -> Path | None:
    """The file that a target names; None of what is imported by its name, or is an object."""
    if not isinstance(target, (str, Path)):
        return None
    path = Path(split_target(str(target))[1]).resolve()
    return path if path.is_file() else None
