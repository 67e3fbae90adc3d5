"""What a point of a sweep is, and how points that share a trace are evaluated: the protocol of every kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memwall.analysis.quantities import Quantity, answered
from memwall.core.errors import MemwallError
from memwall.trace_cache import Traces

Options = Mapping[str, Any]
#: the values of a kind's quantities, or why there are none
Row = tuple[Any, ...] | str


@dataclass(frozen=True, kw_only=True)
class Task:
    """Points of one target that share a trace, in order; what any engine runs. ``prices``: USD per hour by GPU."""

    kind: str
    target: str
    points: tuple[Options, ...]
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PointKind:
    """A kind of points: the ``options`` that a point may have, options among them that do not change the trace
    (``numbers``), that only go with another (``needs``) and in which points of one engine differ (``inner``); the
    ``rows`` of a task of at most ``most`` points, and what pages show unless asked otherwise: ``best`` is the first of
    these that is known. ``usual``: options that pages state where no axis does, with what a point has then. ``alone``:
    a point and ``NAME=USD`` of its GPU → the command that asks the same of it alone and its options, if there is
    one."""

    name: str
    title: str
    options: tuple[str, ...]
    numbers: tuple[str, ...]
    needs: Mapping[str, str] = field(default_factory=dict)
    inner: tuple[str, ...]
    most: int
    rows: Callable[[Task, Traces], list[Row]]
    best: tuple[str, ...]
    front: tuple[str, ...]
    across: tuple[str, ...]
    usual: Mapping[str, int] = field(default_factory=dict)
    alone: Callable[[Options, Sequence[str]], tuple[str, Options] | None] = lambda point, price: None
    #: the commands whose options convert values, and readers of options that none of them has: text → value
    commands: tuple[str, ...] = ("profile",)
    readers: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    #: option → the names that there are, and what they are names of
    listed: Mapping[str, tuple[str, Iterable[str]]] = field(default_factory=dict)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """Its columns."""
        return answered(self.name)

    def usual_of(self, names: Iterable[str]) -> Options:
        """What a point has of options that are not among the ``names``; requests that come by themselves have no
        clients."""
        comes = not {"rate", "trace"}.isdisjoint(names)
        return {
            name: v for name, v in self.usual.items() if name not in names and not (comes and name == "concurrency")
        }

    def trace_key(self, point: Options) -> tuple[tuple[str, Any], ...]:
        """What of a point changes its trace."""
        return tuple((name, point[name]) for name in sorted(point) if name not in self.numbers)


def line(text: str) -> str:
    return " ".join(text.split()) or "failed without a message"


def tried(make: Callable[[], Row]) -> Row:
    try:
        return make()
    except MemwallError as error:
        return line(str(error))


def engine_of(task: Task, inner: Iterable[str]) -> Callable[[Options], list[tuple[str, Any]]]:
    """What points that follow one another may share: all options but the ``inner`` ones."""
    return lambda point: [(name, value) for name, value in point.items() if name not in inner]


def options_of(function: Callable[..., Any], *others: str) -> tuple[str, ...]:
    """The options of a function that may be axes."""
    given = inspect.signature(function).parameters.values()
    return tuple(p.name for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in others)
