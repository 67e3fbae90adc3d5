"""Notebook views of a record, looked up by name, since records may not import the reports that draw them.

A record's methods (``Profile.to_pandas``, ``Comparison._repr_html_``) are one call of :func:`view` each; the report is
imported then, with pandas or matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ShownResult:
    """A result that a notebook shows by its page (:func:`memwall.report.kinds.report_of`)."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        text: str = view("report.notebook.result_fragment", self)
        return text


def view(name: str, *args: Any, **options: Any) -> Any:
    """The view of a record, its first argument: a function by its place, ``report.notebook.profile_frame``."""
    module, _, function = name.rpartition(".")
    return getattr(import_module(f"memwall.{module}"), function)(*args, **options)
