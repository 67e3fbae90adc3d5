"""The text of a GPU's file with tables of constants replaced; every other line is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Constant(NamedTuple):
    """``name = value  # source``; without a source the comment that the line has stays."""

    name: str
    value: float
    source: str = ""


def with_tables(text: str, tables: Mapping[str, Sequence[Constant]]) -> str:
    """``text`` with the constants of tables such as ``utilization.gemm.float16``; constants not named stay."""
    for table, constants in tables.items():
        text = _with_table(text, table, constants)
    return text


def _with_table(text: str, table: str, constants: Sequence[Constant]) -> str:
    lines = text.rstrip("\n").split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip() == f"[{table}]"), None)
    if start is None:
        return "\n".join([*lines, "", f"[{table}]", *_aligned({c.name: _parts(c, "") for c in constants})]) + "\n"
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("[")), len(lines))
    body = [line for line in lines[start + 1 : end] if line.strip()]
    found = {line.partition("=")[0].strip(): _split(line) for line in body}
    for constant in constants:
        found[constant.name] = _parts(constant, found.get(constant.name, ("", ""))[1])
    rest = ["", *lines[end:]] if end < len(lines) else []
    return "\n".join([*lines[: start + 1], *_aligned(found), *rest]) + "\n"


def _parts(constant: Constant, comment: str) -> tuple[str, str]:
    return f"{constant.name} = {number(constant.value)}", constant.source or comment


def _split(line: str) -> tuple[str, str]:
    assignment, _, comment = line.partition("#")
    return assignment.strip(), comment.strip()


def _aligned(entries: Mapping[str, tuple[str, str]]) -> list[str]:
    width = max(len(assignment) for assignment, _ in entries.values())
    return [f"{a:{width}}  # {c}" if c else a for a, c in entries.values()]


def number(value: float) -> str:
    """Four digits, formatted as a TOML float."""
    text = f"{value:.4g}"
    if "e" in text:
        return re.sub(r"e([+-])0?(\d)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", text)
    return text if "." in text else f"{text}.0"


def renamed(text: str, name: str) -> str:
    """A file's text under another name, without the aliases that belong to the first."""
    text = re.sub(r'^name = ".*"$', f'name = "{name}"', text, count=1, flags=re.MULTILINE)
    return re.sub(r"^aliases = \[.*?\]\n", "", text, count=1, flags=re.MULTILINE | re.DOTALL)
