"""Text included from elsewhere: sections of the README and the prose of docstrings, so that no text is duplicated.

``{{ readme: HEADING }}`` is the section of README.md under that heading, ``{{ readme }}`` the text before the first;
``{{ docstring: module }}`` is a module's docstring. Links into the repository, which are not on the site, become their
text.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_PLACE = re.compile(r"^\{\{ (readme|docstring)(?:: ([^}]+))? \}\}$", re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _PLACE.sub(lambda found: _SOURCES[found[1]](found[2] or ""), markdown)


def readme(heading: str) -> str:
    """A section of the README with its sub-sections; without a heading, its head without pictures.

    Raises:
        LookupError: there is no such heading.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    marks = [m for m in re.finditer(r"^(#+) (.+)$", _blanked(text), re.MULTILINE) if len(m[1]) > 1]
    if not heading:
        start, end = text.index("\n") + 1, marks[0].start()
    else:
        found = next((m for m in marks if m[2] == heading), None)
        if found is None:
            raise LookupError(f"README.md has no heading {heading!r}")
        after = (m.start() for m in marks if m.start() > found.start() and len(m[1]) <= len(found[1]))
        start, end = found.end() + 1, next(after, len(text))
    return _LINK.sub(_linked, _PICTURE.sub("", text[start:end])).strip()


def _blanked(text: str) -> str:
    """The text with its code blocks blanked, as a # in them is not a heading."""
    return _FENCED.sub(lambda found: " " * len(found[0]), text)


def _linked(found: re.Match[str]) -> str:
    return f"`{found[2]}`" if found[1] == found[2] else found[1]


def docstring(module: str) -> str:
    """A module's docstring as Markdown."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return _ROLE.sub(r"`\1`", text).replace("``", "`").replace("::\n", ":\n")


_SOURCES = {"readme": readme, "docstring": docstring}
