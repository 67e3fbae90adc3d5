"""Text included from elsewhere: sections of other files and the prose of docstrings, so that no text is duplicated.

``{{ README.md: HEADING }}`` is the section of that file under a heading, without one all of it but its title;
``{{ memwall.module }}`` is a module's docstring. Links into the repository, which is not on the site, become text.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_PLACE = re.compile(r"^\{\{ ([\w./]+?)(?:: ([^}]+))? \}\}$", re.MULTILINE)
#: a picture that is not on the site
_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!pictures/)[^)]*\)\n", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: a block of code, or a link
_LINK = re.compile(rf"(?P<code>{_FENCED.pattern})|\[([^\]]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", _FENCED.flags)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _LINK.sub(_linked, _PICTURE.sub("", _PLACE.sub(_included, markdown)))


def _included(found: re.Match[str]) -> str:
    return section(found[1], found[2]) if found[1].endswith(".md") else docstring(found[1])


def section(file: str, heading: str | None = None) -> str:
    """A section of a file with its sub-sections; without a heading, the file without its title.

    Raises:
        LookupError: there is no such heading.
    """
    text = (ROOT / file).read_text(encoding="utf-8")
    if heading is None:
        return text.partition("\n")[2].strip()
    marks = list(re.finditer(r"^(##+) (.+)$", _blanked(text), re.MULTILINE))
    found = next((m for m in marks if m[2] == heading), None)
    if found is None:
        raise LookupError(f"{file} has no heading {heading!r}")
    after = (m.start() for m in marks if m.start() > found.start() and len(m[1]) <= len(found[1]))
    return text[found.end() + 1 : next(after, len(text))].strip()


def _blanked(text: str) -> str:
    """The text with its code blocks blanked, as a # in them is not a heading."""
    return _FENCED.sub(lambda found: " " * len(found[0]), text)


def _linked(found: re.Match[str]) -> str:
    """A link to a page of the site, from the README too; a link into the repository becomes its text."""
    code, text, target, place = found.groups()
    if code:
        return str(code)
    page = target.removeprefix("docs/")
    if (ROOT / "docs" / page).is_file() and not page.startswith(".."):
        return f"[{text}]({page}{place or ''})"
    return f"`{target}`" if text == target else str(text)


def docstring(module: str) -> str:
    """A module's docstring as Markdown."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return _ROLE.sub(r"`\1`", text).replace("``", "`").replace("::\n", ":\n")
