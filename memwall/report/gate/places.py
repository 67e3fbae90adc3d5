"""A finding's place in the repository, and its name across runs."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from memwall.gate.result import Check, Problem
from memwall.report.document import clean

#: Ends of a target that is a file.
_FILES = (".py", ".json", ".json.gz", ".toml")
_LINE = re.compile("[0-9]{1,9}")
_GLOB = re.compile(r"[*?\[]")
_NUMBER = re.compile(r"\d[\d.,]*")


class Place(NamedTuple):
    """A file, relative to the root of the repository, and a line from 1."""

    path: str
    line: int


def place_of(finding: Check | Problem, folder: str = "", config: str = "") -> Place | None:
    """The first cause's source in the head, else line 1 of the target's file, else of ``config``, else None.

    ``folder`` is where the gate ran, seen from the root of the repository. A path outside the repository is ignored.
    """
    for source in head_sources(finding):
        if place := source_place(source, folder):
            return place
    return target_place(finding.target, folder) or _inside(config, 1, folder)


def head_sources(finding: Check | Problem) -> list[str]:
    """The sources of the causes; vanished ops have none in the head."""
    return [cause.source for cause in getattr(finding, "causes", ()) if cause.kind != "vanished"]


def source_place(source: str, folder: str = "") -> Place | None:
    """``model.py:42`` as a place."""
    path, _, line = source.rpartition(":")
    return _inside(path, int(line), folder) if _LINE.fullmatch(line) else None


def target_place(target: str, folder: str = "") -> Place | None:
    """``model.py``, ``model.py:name`` and ``hf:config.json`` as a place; None for a dotted name or a folder."""
    target = target.removeprefix("hf:")
    for path in (target, target.rpartition(":")[0]):
        if path.endswith(_FILES) and not _GLOB.search(path):
            return _inside(path, 1, folder)
    return None


def _inside(path: str, line: int, folder: str) -> Place | None:
    if not path or path != clean(path) or line < 1:
        return None
    parts: list[str] = []
    for part in PurePosixPath(folder, path).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    whole = "/".join(parts)
    absolute = whole.startswith(("/", "\\")) or ":/" in path or ":\\" in path
    return Place(whole, line) if parts and not absolute else None


def fingerprints(findings: Iterable[Check | Problem]) -> list[str]:
    """A name for each finding, equal from run to run whatever its value and its line; no two share one."""
    seen: Counter[str] = Counter()
    names = []
    for finding in findings:
        key = "\0".join(_identity(finding))
        seen[key] += 1
        names.append(hashlib.sha256(f"{key}\0{seen[key]}".encode(errors="backslashreplace")).hexdigest()[:40])
    return names


def _identity(finding: Check | Problem) -> tuple[str, ...]:
    if isinstance(finding, Problem):
        return "problem", finding.workload, finding.target, _NUMBER.sub("#", finding.message)
    kind = "measured" if finding.measured else "modeled"
    return (kind, finding.workload, finding.gpu, finding.policy, finding.module, finding.quantity, finding.limit)
