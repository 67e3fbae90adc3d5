"""Notebook views of a record, looked up by name, since records may not import the reports that draw them.

A record's methods (``Profile.to_pandas``, ``Comparison._repr_html_``) are one call of :func:`view` each; the report is
imported then, with pandas or matplotlib.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any


class ShownResult:
    """A result that a notebook shows by its page (:func:`memwall.report.kinds.report_of`); a dataclass without a
    ``repr`` of its own, as a field may hold a whole graph."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line: its short fields, and how many items the others have."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        shown = dict.fromkeys(words for name, value in values.items() if (words := _short(name, value)))
        return f"<memwall.{type(self).__name__}: {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        text: str = view("report.notebook.result_fragment", self)
        return text


def _short(name: str, value: Any) -> str:
    """A field in few words; "" for a record within the record, for what is empty, and for the kind of the record."""
    if name in ("schema", "memwall_version"):
        return ""
    if isinstance(value, (tuple, list, dict)):
        return f"{len(value):,} {name}" if value else ""
    if isinstance(value, str):
        return " ".join(value.split())[:60]
    return f"{name} {value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def view(name: str, *args: Any, **options: Any) -> Any:
    """The view of a record, its first argument: a function by its place, ``report.notebook.profile_frame``."""
    module, _, function = name.rpartition(".")
    return getattr(import_module(f"memwall.{module}"), function)(*args, **options)
