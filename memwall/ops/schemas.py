"""Schemas of ops as text, so that naming arguments needs no torch.

``library_schemas.txt`` holds schemas of other libraries and of older versions of torch, with the names of arguments
that the formulas use and, after ``=``, what counts them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_ARGUMENT = re.compile(
    r"(?P<type>[A-Za-z_]+)(?:\((?P<alias>[^)]*)\))?(?P<rest>\S*) (?P<name>\w+)(?:=(?P<default>.*))?$"
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a schema. ``kind`` is ``tensor``, ``list`` (of tensors) or ``value`` (``several``: numbers)."""

    name: str
    kind: str
    several: bool
    written: bool
    default: Any = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema: ``name`` with its overload, as in the formulas (``aten.add.Tensor``), and the number of results.

    ``counted_as`` is what counts an op that has no formula: another op (``aten.silu.default``), or a rule of
    :mod:`memwall.ops.libraries`.
    """

    name: str
    arguments: tuple[Argument, ...]
    results: int
    counted_as: str = ""


def by_name(lines: list[str]) -> Mapping[str, tuple[str, ...]]:
    """``aten::add`` → the lines of its overloads or versions."""
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        space, _, rest = line[: line.index("(")].partition("::")
        key = f"{space}::{rest.partition('.')[0]}"
        found[key] = (*found.get(key, ()), line)
    return found


@cache
def library_schemas() -> Mapping[str, tuple[Schema, ...]]:
    """``vllm::unified_attention`` → the versions of its schema, of other libraries than torch and of older torch;
    an ``autograd.Function`` is in the namespace ``autograd_function``."""
    lines = (files("memwall.ops") / "library_schemas.txt").read_text(encoding="utf-8").splitlines()
    return {name: tuple(map(parse, versions)) for name, versions in by_name(lines).items()}


def parse(line: str) -> Schema:
    """The schema that a line states, and what follows its ``=``."""
    line, _, counted_as = line.partition(" = ")
    head, _, results = line.rpartition(" -> ")
    name, _, inside = head.partition("(")
    arguments = [_argument(part) for part in _split(inside[:-1]) if part != "*"]
    made = 0 if results == "()" else results.count(",") + 1
    space, _, rest = name.partition("::")
    full = f"{space}.{rest}" if "." in rest else f"{space}.{rest}.default"
    return Schema(full, tuple(arguments), made, counted_as)


def _split(text: str) -> list[str]:
    """Parts between the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _argument(text: str) -> Argument:
    match = _ARGUMENT.match(text)
    if match is None:
        raise ValueError(f"not an argument of a schema: {text!r}")
    is_list = "[" in match["rest"]
    kind = ("list" if is_list else "tensor") if match["type"] == "Tensor" else "value"
    default = parse_value(match["default"] or "")
    return Argument(match["name"], kind, is_list and kind == "value", "!" in (match["alias"] or ""), default)


#: a recorded value longer than this is neither a number nor a short list
_LONGEST_VALUE = 400


def parse_value(text: str) -> Any:
    """A value as the profiler writes it: a number, a boolean, a list, None if empty, else the text."""
    text = text.strip()
    if text in ("", "None", "nan") or len(text) > _LONGEST_VALUE:
        return None
    if text in ("inf", "-inf"):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
