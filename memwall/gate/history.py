"""A workload's figures commit by commit: ``memwall.history/1``, JSON lines that two branches can both add to.

One line is one commit, workload, mode, GPU and policy, with every quantity that a gate knows. Lines are sorted by the
commits' dates, keys by the format, and nothing in them depends on when or where they were written, so a file has one
form; ``*.jsonl merge=union`` in ``.gitattributes`` lets git merge two. Readers accept lines in any order.

Figures of two versions of memwall are not comparable: the model of the hardware may differ. :func:`steps` never
compares them. History of the format: 1 is the first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from memwall.analysis.quantities import LIMITS
from memwall.analysis.table import group_by
from memwall.core.errors import UsageError
from memwall.core.files import read_text, write_whole
from memwall.core.git import git
from memwall.core.structure import BadRecord, check_schema, finite, shown, write
from memwall.core.structure import read as read_record
from memwall.record.profile import Profile

SCHEMA = "memwall.history/1"
_FAMILY, _VERSION = "memwall.history", 1

#: a modeled figure has no noise: a change by more than this fraction is a step
THRESHOLD = 1e-3

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
#: how a merge-conflict line begins
_CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")


def _commit(value: Any) -> str:
    if not isinstance(value, str) or not _COMMIT.fullmatch(value):
        raise BadRecord(f"is not the hash of a commit, but {shown(value)}")
    return value


def _date(value: Any) -> str:
    with suppress(UsageError):
        if value == _utc(str(value)):
            return str(value)
    raise BadRecord(f"is not a date in UTC such as 2026-11-22T05:24:55Z, but {shown(value)}")


class TrendSeries(NamedTuple):
    """One line of a trend: one workload on one GPU under one policy."""

    workload: str
    mode: str
    gpu: str
    policy: str


#: (workload, GPU) -> quantity of a server -> value
Served = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """The figures of one series at one commit. ``date`` is the commit's own, ``2026-11-22T05:24:55Z``. ``figures`` are
    quantity → value in base units; a quantity that is not known there (graph breaks without a capture) is absent."""

    commit: Annotated[str, _commit]
    date: Annotated[str, _date]
    memwall_version: str
    workload: str
    mode: str
    gpu: str
    policy: str
    figures: Mapping[str, Annotated[float, finite]]

    @property
    def series(self) -> TrendSeries:
        return TrendSeries(self.workload, self.mode, self.gpu, self.policy)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.commit, *self.series)

    def to_line(self) -> str:
        return json.dumps({"schema": SCHEMA, **write(self)}, ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True)
class FigureStep:
    """A figure that changed from one commit to the next under one version of memwall."""

    row: HistoryRow
    quantity: str
    before: float
    after: float

    @property
    def change(self) -> float | None:
        """After over before, less 1; None where it was 0."""
        return self.after / self.before - 1 if self.before else None

    @property
    def worse(self) -> bool:
        return (self.after > self.before) == LIMITS[self.quantity].lower


# -- making ------------------------------------------------------------------------------------------------------------


def entry_of(
    profiles: Mapping[str, Profile], commit: str, date: str, served: Served | None = None
) -> tuple[HistoryRow, ...]:
    """What a commit adds to a history: a row for each simulation of each profile.

    Args:
        profiles: by the name under which a workload is followed.
        commit: the full hash.
        date: when it was committed, ISO 8601 with an offset: ``git show -s --format=%cI``.
        served: figures of servers, which no profile holds.

    Raises:
        UsageError: no such hash or date, or there is nothing to add.
    """
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"{commit[:60]!r} is no commit's hash")
    when = _utc(date)
    rows = [
        HistoryRow(
            commit,
            when,
            profile.memwall_version,
            name,
            profile.workload.mode,
            schedule.gpu.name,
            schedule.policy,
            {limit: value for limit, q in LIMITS.items() if (value := q.read("profile", profile, schedule)) is not None}
            | {**(served or {}).get((name, schedule.gpu.name), {})},
        )
        for name, profile in profiles.items()
        for schedule in profile.simulations
    ]
    if not rows:
        raise UsageError(f"no workload was simulated at {commit[:12]}; there is nothing to add to the history")
    return tuple(rows)


def _utc(date: str) -> str:
    when = None
    with suppress(ValueError):
        when = datetime.fromisoformat(date)
    if when is None or when.tzinfo is None:
        raise UsageError(f"{date[:60]!r} is no date with an offset, such as 2026-11-22T05:24:55+00:00")
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def committed(folder: str | os.PathLike[str], history: str | os.PathLike[str] = "") -> tuple[str, str]:
    """Hash and date of the commit that a folder's tracked files match; the history file itself may have changed. Raises
    UsageError: no repository, no commit yet, or uncommitted changes: their figures belong to no commit."""
    commit, date = _git(folder, "log", "-1", "--format=%H%n%cI").split()
    but = [":/"]
    if history:  # as git names it in a pattern from the top of the repository
        top = Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
        but.append(f":(exclude,top){Path(os.path.relpath(Path(history).resolve(), top)).as_posix()}")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", *but).splitlines()
    if changed:
        raise UsageError(f"{changed[0][3:]} has changes that are not committed; commit first: a history is of commits")
    return commit, _utc(date)


def _git(folder: str | os.PathLike[str], *arguments: str) -> str:
    code, said = git(folder, *arguments)
    if code:
        reason = next(iter(said.splitlines()), "it failed").removeprefix("fatal: ")
        raise UsageError(f"git {arguments[0]} in {folder}: {reason}")
    return said


# -- the file ----------------------------------------------------------------------------------------------------------


def append(path: str | os.PathLike[str], entry: Iterable[HistoryRow]) -> None:
    """Add rows to a history file, which need not exist; a row of the same commit and series is replaced. Raises
    UsageError: the file is not a history, or it cannot be written."""
    known = {row.key: row for row in (*(read(path) if Path(path).exists() else ()), *entry)}
    write_whole(path, "".join(f"{row.to_line()}\n" for row in sorted(known.values(), key=_order)))


def read(path: str | os.PathLike[str]) -> tuple[HistoryRow, ...]:
    """The rows of a history in the order of their commits' dates. Raises UsageError: no such file, or a line is
    damaged, of a newer memwall, or a duplicate with other figures; names it."""
    rows: dict[tuple[str, ...], HistoryRow] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        row = _row(line, where)
        if rows.setdefault(row.key, row) != row:
            raise UsageError(
                f"{where}: {row.workload} on {row.gpu} at {row.commit[:12]} stands there twice, with other"
                " figures; take one of the lines out"
            )
    return tuple(sorted(rows.values(), key=_order))


def _order(row: HistoryRow) -> tuple[str, ...]:
    return (row.date, *row.key)


def _row(line: str, where: str) -> HistoryRow:
    if line.startswith(_CONFLICT):
        raise UsageError(f"{where} is left from a merge; keep the lines of both sides and take the marks out")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        hint = "name a file that memwall gate --history wrote, or take the line out"
        raise UsageError(f"{where} is not JSON; {hint}") from None
    check_schema(record, _FAMILY, _VERSION, where)
    try:
        return read_record(HistoryRow, record, "")
    except BadRecord as error:
        raise UsageError(f"{where}: {error}") from None


# -- reading a trend ---------------------------------------------------------------------------------------------------


def commits(rows: Sequence[HistoryRow]) -> tuple[str, ...]:
    """The commits in the order of their dates."""
    return tuple(dict.fromkeys(row.commit for row in rows))


def trends(rows: Sequence[HistoryRow]) -> dict[TrendSeries, tuple[HistoryRow, ...]]:
    """The rows of each series, in the order of the commits."""
    found = group_by(rows, [row.series for row in rows])
    return {series: tuple(found[series]) for series in sorted(found)}


def steps(
    rows: Sequence[HistoryRow], quantities: Iterable[str] = (), threshold: float = THRESHOLD
) -> tuple[FigureStep, ...]:
    """Changes by more than a fraction between neighbouring commits of a series, oldest first. There is no step where
    the version of memwall changed, or where a quantity is missing at one of the two."""
    names = tuple(quantities) or tuple(LIMITS)
    found = []
    for trend in trends(rows).values():
        for before, after in pairwise(trend):
            if before.memwall_version == after.memwall_version:
                known = [name for name in names if name in before.figures and name in after.figures]
                found += [FigureStep(after, name, before.figures[name], after.figures[name]) for name in known]
    found = [step for step in found if abs(step.after - step.before) > threshold * abs(step.before)]
    place = {commit: i for i, commit in enumerate(commits(rows))}
    order = list(LIMITS)
    return tuple(sorted(found, key=lambda s: (place[s.row.commit], s.row.series, order.index(s.quantity))))
