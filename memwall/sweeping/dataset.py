"""Finished points in a folder, which only grows: a file for each task, named by its points, written whole.

Parquet where pyarrow is installed, else JSON lines. A file's name and bytes follow from its points alone, so that the
folder is the same whatever engine ran, in whatever order; what a killed process leaves out is evaluated when the sweep
is resumed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, need
from memwall.core.files import write_whole
from memwall.points import Options, PointKind, Row

#: a finished point: its hash, target, options and row
Finished = tuple[str, str, Options, Row]


class Dataset:
    """The folder of one sweep."""

    def __init__(self, folder: Path, kind: PointKind, names: Sequence[str]) -> None:
        self.folder, self.kind, self.names = folder, kind, names
        self.quantities = [row.name for row in kind.quantities]
        self._suffix = "parquet" if find_spec("pyarrow") else "jsonl"

    def begin(self, resume: bool) -> dict[str, Row]:
        """The rows that are there, by their hash; a folder that does not exist is made.

        Raises:
            UsageError: it has points and is not to be resumed, or is of another kind of sweep, or cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write {self.folder}: {error.strerror}") from None
        parts = sorted(self.folder.glob("part-*"))
        if parts and not resume:
            raise UsageError(f"{self.folder} has the points of a sweep; add --resume to keep them, or name another")
        return {key: row for part in parts for key, row in self._read(part)}

    def write(self, finished: Sequence[Finished]) -> None:
        """Add the points of a task. Raises ``UsageError``: the disk is full; what was written before is kept."""
        records = [self._record(*each) for each in finished]
        name = sha256("".join(record["id"] for record in records).encode()).hexdigest()[:16]
        try:
            write_whole(self.folder / f"part-{name}.{self._suffix}", _WRITERS[self._suffix](records, self._types()))
        except UsageError as error:
            raise UsageError(f"{error}; points before are kept, and --resume evaluates the others") from None

    def _record(self, key: str, target: str, point: Options, row: Row) -> dict[str, Any]:
        asked = {name: None if point.get(name) is None else str(point[name]) for name in self.names}
        values = [None] * len(self.quantities) if isinstance(row, str) else row
        measured = dict(zip(self.quantities, values, strict=True))
        return {"id": key, "target": target, **asked, **measured, "error": row if isinstance(row, str) else ""}

    def _types(self) -> dict[str, str]:
        """Column → ``string``, ``bool`` or ``double``; options are as written."""
        types = {row.name: {"word": "string", "flag": "bool"}.get(row.unit, "double") for row in self.kind.quantities}
        return {"id": "string", "target": "string", **dict.fromkeys(self.names, "string"), **types, "error": "string"}

    def _read(self, part: Path) -> list[tuple[str, Row]]:
        """The points of a file; one that is damaged has none, and they are evaluated again. Raises ``UsageError``: it
        is of another kind of sweep."""
        try:
            records = _READERS[part.suffix](part)
        except Exception:  # cut off by a full disk, or not ours
            return []
        if records and not {"id", "error", *self.quantities} <= records[0].keys():
            raise UsageError(f"{part} is of another kind of sweep than {self.kind.name}: name another folder")
        return [(each["id"], each["error"] or tuple(each[name] for name in self.quantities)) for each in records]


def _parquet(records: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> bytes:
    arrow: Any = need("pyarrow", "parquet")
    parquet: Any = need("pyarrow.parquet", "parquet")
    kinds = {"string": arrow.string(), "bool": arrow.bool_(), "double": arrow.float64()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in types.items()])
    columns = {
        name: [None if (value := record[name]) is None else _as(kind, value) for record in records]
        for name, kind in types.items()
    }
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns, schema=schema), buffer)
    return buffer.getvalue()


def _as(kind: str, value: Any) -> Any:
    return float(value) if kind == "double" else value


def _lines(records: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def _from_parquet(part: Path) -> list[dict[str, Any]]:
    parquet: Any = need("pyarrow.parquet", "parquet")
    found: list[dict[str, Any]] = parquet.read_table(part).to_pylist()
    return found


def _from_lines(part: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines()]


_WRITERS: Mapping[str, Callable[..., str | bytes]] = {"parquet": _parquet, "jsonl": _lines}
_READERS: Mapping[str, Callable[[Path], list[dict[str, Any]]]] = {".parquet": _from_parquet, ".jsonl": _from_lines}
