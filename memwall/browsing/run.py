"""The records of a folder: found once, known by a number, read when a list or a page needs them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memwall.browsing.headlines import HISTORY, Headline, headline, minute_of
from memwall.core.errors import UsageError
from memwall.record.profile import Profile
from memwall.report.kinds import Report, report_of
from memwall.report.reading import RECORDS, page_at, schema_at
from memwall.wings import part

#: how a record's file ends
ENDS = (".json", ".json.gz", ".jsonl")
#: files of a folder that are looked at, records that a list has, and bytes that are read for one list
MOST_FILES, MOST_LISTED, MOST_BYTES = 100_000, 1_000, 1 << 30
#: profiles side by side
MOST_COMPARED = 5
#: folders in which nobody keeps records, besides folders with a dot, of which ``.memwall`` has the last profile
_PASSED = ("node_modules", "__pycache__", "site-packages")


@dataclass(frozen=True, kw_only=True)
class ListedRecord:
    """A record by its ``number`` in its folder. ``place`` is its path from there; ``headline`` is None where it was not
    read: ``error`` says why, and is empty where the list had read enough."""

    number: int
    place: str
    family: str
    saved: str
    headline: Headline | None = None
    error: str = ""

    @property
    def is_profile(self) -> bool:
        return self.family == "memwall.profile" and not self.error


@dataclass(frozen=True, kw_only=True)
class RecordList:
    """The records of a folder, the newest first, and what is left out, counted. ``whole``: no file of the folder was
    passed over."""

    folder: str
    records: tuple[ListedRecord, ...]
    left_out: Counter[str]
    whole: bool


@dataclass
class RecordFolder:
    """A folder with records. A number stays a file's own while this object lives; what was read of a file is kept
    until it changes."""

    path: Path
    _numbers: dict[str, int] = field(default_factory=dict)
    _known: dict[tuple[str, int, int], ListedRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise UsageError(f"there is no folder {self.path}")
        self.path = self.path.resolve()

    def listed(self) -> RecordList:
        """The records as they are now. A file that cannot be read is one of them, with its error."""
        files, whole = self._files()
        left_out = Counter({"link": sum(file.is_symlink() for file in files)})
        found = [(file.lstat(), file) for file in files if file.is_file() and not file.is_symlink()]
        records: list[ListedRecord] = []
        budget = MOST_BYTES
        for stat, file in sorted(found, key=lambda each: (-each[0].st_mtime_ns, each[1])):
            if len(records) == MOST_LISTED:
                left_out["older file"] += 1
                continue
            key = str(file), stat.st_mtime_ns, stat.st_size
            known = self._known.get(key)
            if known is None:
                budget -= stat.st_size
                known = self._read(file, stat, within=budget >= 0)
                if budget >= 0:
                    self._known[key] = known
            if known.family:
                records.append(known)
            else:
                left_out["other JSON file"] += 1
        name = self.path.name or str(self.path)
        return RecordList(folder=name, records=tuple(records), left_out=+left_out, whole=whole)

    def number_of(self, file: Path) -> int:
        """The number of a file below the folder. Raises ``UsageError``: it is no record."""
        place = os.path.relpath(file.resolve(), self.path)
        found = next((each.number for each in self.listed().records if each.place == place), None)
        if found is None:
            raise UsageError(f"{file} is no record that memwall report reads, and no history")
        return found

    def page(self, number: int) -> Report:
        """The page of a record. Raises ``UsageError``: there is no such number, or the record is damaged."""
        path = self._file(number)
        if _family(path) == HISTORY:
            history: Report = part("gate.HistoryReport")(part("gate.read")(path))
            return history
        found: Report = page_at(path)[0].load(str(path))
        return found

    def compared(self, numbers: Sequence[int]) -> Report:
        """The page of profiles side by side. Raises ``UsageError``: these are not so many profiles, or damaged."""
        if not 2 <= len(numbers) <= MOST_COMPARED:
            raise UsageError(f"choose two to {MOST_COMPARED} profiles to compare, not {len(numbers):,}")
        profiles = [Profile.load(self._file(number)) for number in numbers]
        page: Any = report_of("Comparison")
        found: Report = page(part("sweeping.compare_profiles")(profiles))
        return found

    def _file(self, number: int) -> Path:
        place = next((place for place, known in self._numbers.items() if known == number), None)
        path = None if place is None else self.path / place
        if path is None or path.is_symlink() or not path.resolve().is_relative_to(self.path) or not path.is_file():
            raise UsageError(f"there is no record {number} in this folder, or no more")
        return path

    def _files(self) -> tuple[list[Path], bool]:
        """Files that may be records, and whether these are all: where there are too many, the search ends."""
        found: list[Path] = []
        looked = 0
        for top, folders, files in os.walk(self.path):
            folders[:] = sorted(f for f in folders if f == ".memwall" or not (f.startswith(".") or f in _PASSED))
            found += [Path(top, name) for name in files if name.lower().endswith(ENDS)]
            looked += len(files)
            if looked > MOST_FILES:
                return found, False
        return found, True

    def _read(self, file: Path, stat: os.stat_result, *, within: bool) -> ListedRecord:
        place, family = os.path.relpath(file, self.path), _family(file)
        number = self._numbers.setdefault(place, len(self._numbers) + 1) if family else 0
        record = ListedRecord(number=number, place=place, family=family, saved=minute_of(stat.st_mtime))
        if not family or not within:
            return record
        try:
            return replace(record, headline=headline(file, record.family))
        except UsageError as error:
            return replace(record, error=str(error).replace(f"{self.path}{os.sep}", ""))


def _family(path: Path) -> str:
    """What a file is, of what has a page; else nothing."""
    family = schema_at(path).partition("/")[0]
    return family if family in (*RECORDS, HISTORY) else ""
