"""A result as text or bytes: each page is a :class:`Report`, and :func:`render` writes it as one of its kinds. No I/O.

A report holds the content; each kind of file has one writer, which decides how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, ClassVar

from memwall.core.errors import UsageError
from memwall.report.document import Document
from memwall.report.figures.picture import Drawing, picture
from memwall.report.html import to_html
from memwall.report.markdown import to_markdown
from memwall.report.tables import csv_text, to_parquet
from memwall.report.text import to_text


class Report:
    """A result and how to show it. Pages are frozen dataclasses of this: the result first, then the options.

    A page has those of the methods that its ``kinds`` need.
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

    def record(self) -> str:
        """Its record as JSON."""
        raise NotImplementedError

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Columns and rows of CSV and Parquet."""
        raise NotImplementedError

    def figure(self) -> Drawing:
        """The picture.

        Raises:
            UsageError: there is nothing to draw.
        """
        raise NotImplementedError


#: kind -> its writer; ``text`` has options and is written by :func:`render`
_WRITERS: Mapping[str, Callable[[Report], str | bytes]] = {
    "md": lambda report: to_markdown(report.document("md")),
    "html": lambda report: to_html(report.document("html")),
    "json": lambda report: report.record(),
    "csv": lambda report: csv_text(*report.rows()),
    "parquet": lambda report: to_parquet(*report.rows()),
    "png": lambda report: picture("png", *report.figure()),
    "svg": lambda report: picture("svg", *report.figure()).decode("utf-8"),
}

#: results that :func:`render` takes as they are -> module and name of their report
_REPORTS = {"Profile": ("profile", "ProfileReport"), "Comparison": ("comparison", "ComparisonReport")}


def render(result: Any, kind: str, *, width: int | None = None, color: bool = False, **options: Any) -> str | bytes:
    """A report, a profile or a comparison as one of its kinds; png and parquet are bytes, the rest text.

    ``width`` and ``color`` are those of a text; ``options`` are the fields of the report of a profile (``by``, ``top``,
    ``sort``, ``what_ifs``, ``explained``). A kind ignores what it has no use for: ``top`` means nothing to a CSV.

    Raises:
        UsageError: no such kind.
        MissingError: the kind needs a dependency that is not installed.
        TypeError: an option that the report does not have.
    """
    report: Report = result if isinstance(result, Report) else _report_of(result)(result, **options)
    if kind not in report.kinds:
        raise UsageError(f"{report.noun} has no {kind!r} form; there is {', '.join(report.kinds)}")
    if kind == "text":
        return report.text(width=width, color=color)
    return {**_WRITERS, **report.own}[kind](report)


def _report_of(result: object) -> Callable[..., Report]:
    module, name = _REPORTS[type(result).__name__]
    report: Callable[..., Report] = getattr(import_module(f"memwall.report.pages.{module}"), name)
    return report
