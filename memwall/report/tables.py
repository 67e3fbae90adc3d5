"""CSV and Parquet from columns and rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from memwall.core.errors import need

#: a spreadsheet treats a cell that starts with one of these as a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table as CSV; text that a spreadsheet would treat as a formula is prefixed with an apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def to_parquet(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> bytes:
    """A table as Parquet.

    Raises:
        MissingError: pyarrow is not installed.
    """
    cells = list(rows)
    arrow: Any = need("pyarrow", "parquet")
    parquet: Any = need("pyarrow.parquet", "parquet")
    arrays = {name: [row[i] for row in cells] for i, name in enumerate(columns)}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(arrays), buffer)
    return buffer.getvalue()
