"""Any dataclass ↔ plain JSON types. The fields say what they may hold; reading checks every key and never runs code.

A field's type is its check: ``str``, ``bool``, ``int`` (a count: 0 or more), ``float`` (0 or more), ``T | None``,
``tuple[T, ...]``, ``Mapping[str, T]``, another dataclass, ``Any``. ``Annotated[T, check]`` replaces it by a function
that returns the value or raises :class:`BadRecord`; ``Annotated[T, SavedAs(...)]`` says how a record has it instead.
The keys of a mapping may be of a type that has ``parse``.

A class with ``OMIT_DEFAULTS = True`` leaves fields with their default out when written. One with ``SAVED`` writes these
attributes in place of its fields, properties and attributes of attributes among them (``"op=message.op"``: under this
key). Its ``check()``, if it has one, sees each object that was read. ``field(metadata={"key": "class"})`` is the name
that a record has for a field.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from memwall.core.errors import UsageError
from memwall.core.units import few

T = TypeVar("T")
Check = Callable[[Any], Any]

#: beyond any count of a model, and beyond any time, rate or size in base units: larger numbers are damage
_MOST, _LARGEST = 1 << 96, 1e21


class BadRecord(ValueError):
    """A value violates the format. ``path`` names its key; a message that begins with a colon is about an object."""

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{one_line(self.path)}{'' if self.what.startswith(':') else ' '}{self.what}".lstrip(". ")

    def inside(self, parent: str) -> BadRecord:
        """The same complaint seen from the object around it; ``parent`` is ``.key``, ``[3]`` or the root's name."""
        return BadRecord(self.what, parent + self.path)


class SavedAs(NamedTuple):
    """How a record has a field: as ``hint``, which ``read`` turns into the value and ``write`` makes of it."""

    hint: Any
    read: Check
    write: Check

    def __call__(self, value: Any) -> Any:
        return self.read(value)


# -- checks ------------------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """The value as a message quotes it: one line of at most 60 characters."""
    code = repr(value) if not isinstance(value, int) or value.bit_length() < 256 else "a huge integer"
    return one_line(code if len(code) <= 60 else f"{code[:57]}...")


def printable(text: str) -> str:
    """Text with a question mark for each line break or other character that does not print."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def one_line(value: object, longest: int = 300) -> str:
    """Printable text on one line, cut to a length."""
    line = printable(str(value))
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def count(value: Any) -> int:
    """A whole number, 0 or more."""
    if type(value) is not int or not 0 <= value < _MOST:
        raise BadRecord(f"must be a whole number that is not negative, not {shown(value)}")
    return value


def at_least_1(value: Any) -> int:
    """A whole number above 0."""
    if count(value) < 1:
        raise BadRecord("must be at least 1")
    return int(value)


def number(value: Any) -> float:
    """A number, 0 or more."""
    if type(value) not in (int, float) or not 0 <= value < _LARGEST:
        raise BadRecord(f"must be a number that is not negative, not {shown(value)}")
    return float(value)


def measurable(value: Any) -> float:
    """0, or a time or rate of at least 10^-15: what is smaller is damage, and its quotients may overflow."""
    if 0 < number(value) < 1e-15:
        raise BadRecord(f"must be a number that is not negative, not {shown(value)}")
    return float(value)


def above_0(value: Any) -> float:
    """A time or rate that is not 0."""
    if not measurable(value):
        raise BadRecord("must be above 0")
    return float(value)


def finite(value: Any) -> float:
    """Any number that is not infinite, as it was written."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise BadRecord(f"must be a number, not {shown(value)}")
    known: float = value
    return known


#: so many choices are listed in a message
_MOST_LISTED = 24


def one_of(choices: Iterable[str]) -> Check:
    """The check of a text from a fixed set."""
    known = tuple(choices)

    def check(value: Any) -> str:
        if value not in known:
            raise BadRecord(f"is {shown(value)}; want one of {few(known, _MOST_LISTED)}")
        return str(value)

    check.choices = known  # type: ignore[attr-defined]  # for a schema
    return check


def _instance(kind: type, complaint: str) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise BadRecord(complaint)
        return value

    return check


_TEXT, _LIST, _OBJECT = (
    _instance(str, "is not text"),
    _instance(list, "is not a list"),
    _instance(dict, "is not an object"),
)
_PLAIN: dict[Any, Check] = {
    str: _TEXT,
    bool: _instance(bool, "is neither true nor false"),
    int: count,
    float: number,
    Any: lambda value: value,
}


# -- reading -----------------------------------------------------------------------------------------------------------


def read(cls: type[T], record: Any, where: str = "record") -> T:
    """The object of a parsed record; keys that the class does not have are ignored.

    Raises:
        BadRecord: a key is missing or its value is not as its type says; names it, behind ``where``.
    """
    try:
        found: T = check_of(cls)(record)
    except BadRecord as error:
        raise error.inside(where) from None
    return found


def check_schema(record: Any, family: str, version: int, source: str) -> None:
    """Refuse what is not a record of this family, or is newer than this memwall reads.

    Raises:
        UsageError: says what it is instead.
    """
    schema = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(schema, str):
        raise UsageError(f'{source} is not a {family} record: it has no "schema"')
    name, _, stated = schema.partition("/")
    if name != family or not stated.isdecimal():
        raise UsageError(f"{source} is not a {family} record: its schema is {schema[:60]!r}")
    if len(stated) > 6 or int(stated) > version:
        raise UsageError(
            f"{source} was written by a newer memwall (schema {schema[:60]}); this one reads {family}/{version}"
        )
    if int(stated) < 1:
        raise UsageError(f"{source}: there is no schema {schema}")


def _make_check(hint: Any) -> Check:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found: Check = next(filter(callable, arguments[1:]), check_of(arguments[0]))
        return found
    if origin in (Union, UnionType):
        inner = check_of(_not_none(arguments))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _counts if arguments[0] is int else _items(check_of(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _entries(getattr(arguments[0], "parse", str), check_of(arguments[1]))
    return _object(hint)


#: the check of a type
check_of: Callable[[Any], Check] = cache(_make_check)


def checks_of(cls: type) -> dict[str, Check]:
    """The check of each field of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: check_of(hints[f.name]) for f in fields(cls)}


def _not_none(arguments: tuple[Any, ...]) -> Any:
    return next(argument for argument in arguments if argument is not NoneType)


def _items(check: Check) -> Check:
    def read_list(value: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        try:
            found.extend(map(check, _LIST(value)))
        except BadRecord as error:
            raise error.inside(f"[{len(found)}]" if isinstance(value, list) else "") from None
        return tuple(found)

    return read_list


_each_count = _items(count)


def _counts(value: Any) -> tuple[int, ...]:
    """A list of counts, most lists of a graph, in a loop without calls."""
    if type(value) is list:
        for item in value:
            if type(item) is not int or not 0 <= item < _MOST:
                break
        else:
            return tuple(value)
    found: tuple[int, ...] = _each_count(value)
    return found


def _entries(parse: Callable[[str], Any], check: Check) -> Check:
    def read_mapping(value: Any) -> dict[Any, Any]:
        found = {}
        key = ""
        try:
            for key, item in _OBJECT(value).items():
                found[parse(key)] = check(item)
        except BadRecord as error:
            raise error.inside(f".{key[:40]}" if isinstance(value, dict) else "") from None
        except ValueError as error:
            raise BadRecord(f": {error}", f".{key[:40]}") from None
        return found

    return read_mapping


def _object(cls: type) -> Check:
    checks = checks_of(cls)
    rows = {key_of(f): (f.name, checks[f.name]) for f in fields(cls)}
    required = {f.name: key_of(f) for f in fields(cls) if f.default is f.default_factory is MISSING}
    check_all = None if any(f.name == "check" for f in fields(cls)) else getattr(cls, "check", None)

    def read_object(value: Any) -> Any:
        values = {}
        key = ""
        try:
            for key, item in _OBJECT(value).items():
                if key in rows:
                    name, check = rows[key]
                    values[name] = check(item)
        except BadRecord as error:
            raise error.inside(f".{key}" if isinstance(value, dict) else "") from None
        if not required.keys() <= values.keys():
            raise BadRecord(f"has no {next(key for name, key in required.items() if name not in values)!r}")
        made = cls(**values)
        if check_all:
            check_all(made)
        return made

    return read_object


# -- writing -----------------------------------------------------------------------------------------------------------


def write(value: Any) -> Any:
    """Plain JSON types, keys in the order of the fields."""
    writer = _writer(type(value))
    return writer(value) if writer else value


def _make_writer(hint: Any) -> Check | None:
    """What turns values of a type into plain JSON types; None where they are so already."""
    origin, arguments = get_origin(hint), get_args(hint)
    kind: Any = origin or hint
    if kind is Annotated:
        return next((each.write for each in arguments[1:] if isinstance(each, SavedAs)), _writer(arguments[0]))
    if kind in (Union, UnionType):
        inner = _writer(_not_none(arguments))
        return inner and (lambda value: None if value is None else inner(value))
    if kind is Any:
        return write
    if issubclass(kind, (str, int, float, NoneType)):
        return None
    if issubclass(kind, (list, tuple)):
        each = _writer(arguments[0]) if origin else write
        return partial(_write_items, each) if each else list
    if issubclass(kind, Mapping):
        each = _writer(arguments[1]) if origin else write
        return lambda value: {str(key): each(item) if each else item for key, item in value.items()}
    return _object_writer(kind)


_writer: Callable[[Any], Check | None] = cache(_make_writer)


def _write_items(writer: Check, value: Any) -> list[Any]:
    return [*map(writer, value)]


def _object_writer(cls: type) -> Check:
    own = saved_of(cls)
    keys = [each.key for each in own]
    values = attrgetter("__class__", *(each.name for each in own))  # one extra: with a single name it returns no tuple
    omitted = [(each.key, each.default) for each in own if each.default is not MISSING]
    omitted = omitted if getattr(cls, "OMIT_DEFAULTS", False) else []
    writers = [(each.key, writer) for each in own if (writer := _writer(each.hint))]

    def write_object(value: Any) -> dict[str, Any]:
        record = dict(zip(keys, values(value)[1:], strict=True))
        for key, default in omitted:
            if record[key] == default:
                del record[key]
        for key, writer in writers:
            if key in record:
                record[key] = writer(record[key])
        return record

    return write_object


class Saved(NamedTuple):
    """An attribute that is written: its key, its name, its type, and its default, MISSING without one."""

    key: str
    name: str
    hint: Any
    default: Any


def saved_of(cls: type) -> list[Saved]:
    """What is written of the objects of a class, in order."""
    own = {f.name: f for f in fields(cls)}
    found = []
    for said in getattr(cls, "SAVED", own):
        key, _, path = said.rpartition("=")
        name, spec = path.rpartition(".")[2], own.get(path)
        default = MISSING
        if spec is not None:
            name, default = key_of(spec), spec.default if spec.default_factory is MISSING else spec.default_factory()
        found.append(Saved(key or name, path, _hint_of(cls, path), default))
    return found


def _hint_of(cls: Any, path: str) -> Any:
    """The type of an attribute of a class, or of an attribute of that."""
    name, _, rest = path.partition(".")
    said = getattr(cls, name, None)
    of, asked = (said.fget, "return") if isinstance(said, property) else (cls, name)
    hint = get_type_hints(of, include_extras=True)[asked]
    return _hint_of(hint, rest) if rest else hint


def key_of(spec: Field[Any]) -> str:
    """The name that a record has for a field."""
    return str(spec.metadata.get("key", spec.name))
