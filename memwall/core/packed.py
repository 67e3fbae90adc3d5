"""Plain values and memwall's records ↔ JSON text that is read without a check of its fields: what memwall keeps for
itself between runs. Reading makes tuples, lists, dicts, sets, and dataclasses and named tuples of this package, calls
nothing of theirs, and so can run no code, whatever the text says.

A text is ``[classes, nodes]``. A node is ``[kind, part, ...]``: a number of ``_PLAIN`` or, after those, of a class; a
part that holds others is ``[number of its node]``, and nodes come after their parts. Equal tuples and frozen objects
are one node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib import import_module
from itertools import chain
from types import MemberDescriptorType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_SCALARS = frozenset((type(None), bool, int, float, str))
#: kind of a node → what it makes of its parts; the first is shared by all that are equal
_PLAIN: Sequence[Callable[[list[Any]], Any]] = (
    tuple, list, lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)), frozenset,
)  # fmt: skip
_TUPLE, _LIST, _DICT, _SET = range(len(_PLAIN))


def pack(value: Any) -> str:
    """The text of a value.

    Raises:
        TypeError: it holds something else than those.
    """
    return json.dumps(_Nodes().of(value), separators=(",", ":"))


class _Nodes:
    def __init__(self) -> None:
        self._classes: dict[type, int] = {}
        self._nodes: list[list[Any]] = []
        self._known: dict[str, list[int]] = {}
        self._met: dict[int, tuple[Any, list[int]]] = {}  # with what has the id, which so stays its own

    def of(self, value: Any) -> tuple[list[str], list[list[Any]]]:
        self._nodes.append([_TUPLE, self._part(value)])
        return [f"{cls.__module__}:{cls.__qualname__}" for cls in self._classes], self._nodes

    def _part(self, value: Any) -> Any:
        if type(value) in _SCALARS:
            return value
        if id(value) not in self._met:
            kind, parts = self._split(value)
            self._met[id(value)] = value, self._placed([kind, *map(self._part, parts)])
        return self._met[id(value)][1]

    def _placed(self, node: list[Any]) -> list[int]:
        if node[0] in (_LIST, _DICT):  # may be changed where it is
            self._nodes.append(node)
            return [len(self._nodes) - 1]
        key = repr(node)
        if key not in self._known:
            self._nodes.append(node)
            self._known[key] = [len(self._nodes) - 1]
        return self._known[key]

    def _split(self, value: Any) -> tuple[int, Iterator[Any] | Sequence[Any]]:
        cls = type(value)
        if names := _fields(cls):
            return self._classes.setdefault(cls, len(_PLAIN) + len(self._classes)), [getattr(value, n) for n in names]
        if cls is list:
            return _LIST, value
        if cls is tuple or (isinstance(value, Sequence) and _is_ours(cls) and not isinstance(value, (tuple, str))):
            return _TUPLE, value
        if isinstance(value, Mapping):
            return _DICT, chain.from_iterable(value.items())
        if isinstance(value, Set):
            return _SET, sorted(value)
        raise TypeError(f"a {cls.__name__} is not kept")


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith(f"{_PACKAGE}.")


def _fields(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass or a named tuple of this package; none of another class."""
    if not _is_ours(cls):
        return ()
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", ())
    return tuple(each.name for each in fields(cls)) if is_dataclass(cls) else ()


def unpack(text: str | bytes) -> Any:
    """The value of a text.

    Raises:
        ValueError, TypeError, LookupError, ImportError, AttributeError: it is not one of these.
    """
    classes, nodes = json.loads(text)
    make = [*_PLAIN, *map(_maker, classes)]
    made: list[Any] = []
    for kind, *parts in nodes:
        made.append(make[kind]([made[part[0]] if type(part) is list else part for part in parts]))
    return made[-1][0]


@cache
def _maker(name: str) -> Callable[[list[Any]], Any]:
    """What makes an object of a class of the values of its fields, as they are."""
    module, _, path = name.partition(":")
    if not module.startswith(f"{_PACKAGE}."):
        raise ValueError(f"{name} is not of {_PACKAGE}")
    cls = getattr(import_module(module), path)
    names = _fields(cls) if isinstance(cls, type) else ()
    if not names:
        raise ValueError(f"{name} has no fields")
    if issubclass(cls, tuple):
        return partial(tuple.__new__, cls)
    slots = [slot.__set__ for each in names if isinstance(slot := getattr(cls, each, None), MemberDescriptorType)]

    def in_slots(values: list[Any]) -> Any:
        new = object.__new__(cls)
        for put, value in zip(slots, values, strict=True):
            put(new, value)
        return new

    def in_dict(values: list[Any]) -> Any:
        new = object.__new__(cls)
        new.__dict__.update(zip(names, values, strict=True))
        return new

    return in_slots if len(slots) == len(names) and slots else in_dict
