"""``render(thing, kind)``: a profile or a comparison as text or bytes. No I/O: the command line writes files.

Each renderer is imported when it is asked for, so that text needs no matplotlib and a table no jinja2.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from memwall.analysis.compare import Comparison
from memwall.core.errors import UsageError
from memwall.record.profile import Profile

__all__ = ["KINDS", "render"]

#: kind -> (module, function, options it takes), for a profile
_PROFILE = {
    "text": ("text", "render_text", ("by", "top", "sort", "what_ifs", "explained", "width", "color")),
    "md": ("markdown", "render_markdown", ("by", "top", "sort", "what_ifs", "explained")),
    "html": ("html", "render_html", ("what_ifs",)),
    "json": ("tables", "profile_json", ("what_ifs", "explained")),
    "csv": ("tables", "profile_csv", ()),
    "parquet": ("tables", "profile_parquet", ()),
    "png": ("figures.profile", "profile_png", ()),
    "svg": ("figures.profile", "profile_svg", ()),
    "trace.json": ("trace_events", "render_trace", ()),
}

#: the same for a comparison
_COMPARISON = {
    "text": ("text", "render_comparison", ("width", "color")),
    "md": ("markdown", "comparison_markdown", ()),
    "html": ("html", "render_comparison_html", ()),
    "json": ("tables", "comparison_json", ()),
    "csv": ("tables", "comparison_csv", ()),
    "parquet": ("tables", "comparison_parquet", ()),
    "png": ("figures.profile", "comparison_png", ()),
    "svg": ("figures.profile", "comparison_svg", ()),
}

KINDS = tuple(_PROFILE)
_OPTIONS = frozenset(option for row in _PROFILE.values() for option in row[2])


def render(thing: Profile | Comparison, kind: str, **options: Any) -> str | bytes:
    """A profile or comparison as one of ``KINDS``; png and parquet are bytes, the rest text.

    Options that a kind has no use for are ignored: ``width`` means nothing to a CSV.

    Raises:
        UsageError: no such kind, or there is none of it for a comparison.
        MissingError: the kind needs a dependency that is not installed.
        TypeError: an option that no kind takes.
    """
    if unknown := sorted(set(options) - _OPTIONS):
        raise TypeError(f"render() takes no option {', '.join(unknown)}")
    table = _PROFILE if isinstance(thing, Profile) else _COMPARISON
    if kind not in table:
        raise UsageError(f"a {type(thing).__name__.lower()} has no {kind!r} form; there is {', '.join(table)}")
    module, function, takes = table[kind]
    renderer: Callable[..., str | bytes] = getattr(import_module(f"memwall.report.{module}"), function)
    return renderer(thing, **{name: value for name, value in options.items() if name in takes})
