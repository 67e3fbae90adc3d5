"""Options said once: a key of a question is a keyword in Python, an option of the command line, an axis of a sweep, a
setting of the gate and a property of a JSON schema.

A question is a ``TypedDict`` whose keys are annotated with an :class:`Option`, so that a checker of types knows the
keywords of a function that takes ``**question: Unpack[Question]``; or a dataclass, whose fields have the defaults.
Every reader takes the rest from here:
:mod:`memwall.cli.options` makes click's options, :mod:`memwall.gate.reading` the types of settings,
:func:`signature_of` the keywords of a function, :mod:`memwall.points` the axes.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Q = TypeVar("Q", bound=Mapping[str, Any])


@dataclass(frozen=True)
class Option:
    """What is said of an option. ``name`` is the keyword, ``hint`` its type; ``flag`` is its name on the command line
    where it differs, ``completes`` what completes a value, ``several`` how more than one value is given: ``words``
    after one flag, or the flag ``again``; a number is ``least`` or more, or ``above`` one; ``shown`` whether the help
    states the default. An ``internal`` one is of Python and the command line alone."""

    default: Any = None
    help: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    above: float | None = None
    metavar: str | None = None
    flag: str = ""
    completes: str = ""
    several: str = ""
    shown: bool = False
    internal: bool = False
    name: str = ""
    hint: Any = Any

    @property
    def types(self) -> tuple[type, ...]:
        """The types that a value may have."""
        return tuple(_types(self.hint))

    @property
    def spelled(self) -> str:
        """The flag without its dashes; what is on by default is turned off by ``no-``."""
        name = self.flag or self.name.replace("_", "-")
        return f"no-{name}" if self.default is True else name


@cache
def options_of(question: Any) -> Mapping[str, Option]:
    """The options of a question by keyword, in order."""
    defaults = {item.name: item.default for item in fields(question)} if is_dataclass(question) else {}
    found = {}
    for name, annotated in typing.get_type_hints(question, include_extras=True).items():
        hint, said = typing.get_args(annotated)
        found[name] = replace(said, name=name, hint=hint, default=defaults.get(name, said.default))
    return found


def completed(question: type[Q], given: Q) -> Q:
    """What is asked: the default of each option that is not given. Raises TypeError: no such option."""
    if unknown := [name for name in given if name not in options_of(question)]:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    whole: Any = {**{name: said.default for name, said in options_of(question).items()}, **given}
    return whole


def filled(question: Any, given: Mapping[str, Any]) -> Any:
    """As :func:`completed`, as an object with an attribute for each option."""
    return types.SimpleNamespace(**completed(question, given))


def part_of(question: Any, given: Mapping[str, Any]) -> Any:
    """What is given of a question's options."""
    return {name: given[name] for name in options_of(question) if name in given}


def _types(hint: Any) -> Iterator[type]:
    """``str | tuple[int, int] | None`` → ``str, tuple``; a whole number is a float too."""
    if isinstance(hint, types.UnionType):
        for part in typing.get_args(hint):
            yield from _types(part)
    elif hint is float:
        yield from (int, float)
    elif isinstance(origin := typing.get_origin(hint) or hint, type) and origin is not type(None):
        yield origin


def signature_of(*questions: Any) -> Callable[[F], F]:
    """A decorator: a function that takes the options of questions as ``**`` keywords says them in its signature, and
    behind its docstring what the questions' say of their attributes."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        named = {p.name for p in own}
        asked = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=said.default, annotation=said.hint)
            for question in questions
            for name, said in options_of(question).items()
            if name not in named
        ]
        function.__signature__ = signature.replace(parameters=[*own, *asked])  # type: ignore[attr-defined]
        function.__annotations__.update({p.name: p.annotation for p in asked})
        docstrings = (inspect.cleandoc(question.__doc__ or "") for question in questions)
        if attributes := "\n".join(filter(None, (each.partition("\nAttributes:\n")[2] for each in docstrings))):
            function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{attributes}"
        return function

    return decorate
