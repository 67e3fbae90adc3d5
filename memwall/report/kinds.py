"""A result as text or bytes: each page is a :class:`Report`, and :func:`render` writes it as one of its kinds. No I/O.

A report holds the content; each kind of file has one writer, which decides how it looks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, ClassVar

from memwall.core.errors import UsageError, need
from memwall.report.document import Document, clean, plain
from memwall.report.figures.picture import KINDS, picture
from memwall.report.figures.scene import STYLES, Chart
from memwall.report.html import to_html
from memwall.report.markdown import to_markdown
from memwall.report.text import to_text
from memwall.wings import page_of


class Report:
    """A result and how to show it. Pages are frozen dataclasses of this: the result first, then the options.

    A page has the methods that its ``kinds`` need.
    """

    #: what a message calls it
    noun: ClassVar[str]
    #: what it can be written as
    kinds: ClassVar[tuple[str, ...]]
    #: writers of kinds that no other page has, or has otherwise
    own: ClassVar[Mapping[str, Callable[[Any], str | bytes]]] = {}

    def document(self, kind: str) -> Document:
        """What it says as ``text``, ``md`` or ``html``."""
        raise NotImplementedError

    def text(self, *, width: int | None, color: bool) -> str:
        """The page for a terminal."""
        return to_text(self.document("text"), width=width, color=color)

    def record(self) -> str | Iterable[str]:
        """Its record as JSON, whole or in pieces."""
        raise NotImplementedError

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Columns and rows of CSV and Parquet."""
        raise NotImplementedError

    def figure(self) -> Chart:
        """The picture; a :class:`UsageError` where there is nothing to draw."""
        raise NotImplementedError


#: a spreadsheet treats a cell that starts with one of these as a formula
_FORMULA = ("=", "+", "-", "@")


def _csv(report: Report) -> str:
    """Texts are one line; one that a spreadsheet would treat as a formula is prefixed with an apostrophe."""
    columns, rows = report.rows()
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows(map(_cell, row) for row in rows)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def _parquet(report: Report) -> bytes:
    columns, rows = report.rows()
    cells = list(rows)
    arrow: Any = need("pyarrow", "parquet")
    parquet: Any = need("pyarrow.parquet", "parquet")
    buffer = io.BytesIO()
    parquet.write_table(arrow.table({name: [row[i] for row in cells] for i, name in enumerate(columns)}), buffer)
    return buffer.getvalue()


#: kind -> its writer, but for ``text``, which has options
_WRITERS: Mapping[str, Callable[[Report], str | bytes | Iterable[str]]] = {
    "md": lambda report: to_markdown(report.document("md")),
    "html": lambda report: to_html(report.document("html")),
    "json": lambda report: report.record(),
    "csv": _csv,
    "parquet": _parquet,
}
#: kinds that have escapes of their own for what does not print
_ESCAPED = ("json", "trace.json")


#: class of a result of the analyzer -> its page
_PAGES = {
    "Profile": "profile.ProfileReport", "CollectiveTimes": "clusters.CommReport", "Gpu": "gpus.GpuReport"
}  # fmt: skip


def report_of(result: str) -> type[Report]:
    """The page of a class of results. Raises KeyError: it has none."""
    found: Any = page_of(result)
    if found is None:
        module, _, name = _PAGES[result].rpartition(".")
        found = getattr(import_module(f"memwall.report.pages.{module}"), name)
    return found


def render(
    result: Any, kind: str, *, width: int | None = None, color: bool = False, style: str = "screen", **options: Any
) -> str | bytes:
    """A report, a profile, a comparison or servers (``saved``) as one of its kinds; png, pdf and parquet are bytes, the
    rest text.

    ``width`` and ``color`` are of a text, ``style`` (``screen`` or ``paper``) is of a picture; ``options`` are
    the fields of the report of a profile (``by``, ``top``, ``sort``, ``what_ifs``, ``explained``, ``picture``). A kind
    ignores what it has no use for: ``top`` means nothing to a CSV.

    Raises:
        UsageError: no such kind.
        MissingError: the kind needs a dependency that is not installed.
        TypeError: an option that the report does not have.
    """
    found = render_pieces(result, kind, width=width, color=color, style=style, **options)
    return found if isinstance(found, (str, bytes)) else "".join(found)


def render_pieces(
    result: Any, kind: str, *, width: int | None = None, color: bool = False, style: str = "screen", **options: Any
) -> str | bytes | Iterable[str]:
    """As :func:`render`, but a record that is too large to be in memory comes in pieces of text."""
    report: Report = result
    if not isinstance(result, Report):
        page: Any = report_of(type(result).__name__)
        report = page(result, **options)
    if kind not in report.kinds:
        raise UsageError(f"{report.noun} has no {kind!r} form; there is {', '.join(report.kinds)}")
    if kind == "text":
        return report.text(width=width, color=color)
    if kind in KINDS:
        drawn = picture(kind, report.figure(), STYLES[style])
        return plain(drawn.decode("utf-8")) if kind == "svg" else drawn
    made = {**_WRITERS, **report.own}[kind](report)
    return plain(made) if isinstance(made, str) and kind not in _ESCAPED else made
