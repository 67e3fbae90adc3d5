"""Arguments of events as plain values: a value of the wrong type counts as not recorded.

Profilers write numbers as texts, lists as texts, tensor lists as lists of lists; hostile files write anything.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

from memwall.traces.fields import ATTRIBUTES
from memwall.traces.records import Detail

#: microseconds since 1970 are 1.8e15 today; a larger number is not a time
_LATEST_US = 1e17
_LARGEST = 1 << 62


def read_detail(found: dict[str, Any]) -> Detail:
    """Arguments as frozen values; one of the wrong type counts as not recorded."""
    take = found.pop
    dims, strides = take("dims", None), take("strides", None)
    grid = _triple(found.get("grid"))
    if grid is not None:  # of a kernel; a Triton call's is a text
        del found["grid"]
    return Detail(
        dims=_nested(dims),
        types=tuple(map(_type_text, _listed(take("types", None)))),
        strides=None if strides is None else _nested(strides),
        concrete=tuple(map(_value_text, _listed(take("concrete", None)))),
        source=printable(str(take("source", ""))),
        grid=grid,
        block=_triple(take("block", None)),
        bytes=moved if (moved := whole_number(take("bytes", None))) >= 0 else None,
        attributes=MappingProxyType({key: _plain(found[key]) for key in found if key in ATTRIBUTES}),
    )


def printable(text: str) -> str:
    """The text with control characters and lone surrogates as escapes: names go to terminals and files."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def time_us(value: object) -> float | None:
    """A time in microseconds; None if it is not a number."""
    try:
        time = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return time if -_LATEST_US < time < _LATEST_US else None


def whole_number(value: object) -> int:
    """A whole number, also from a text or a float; else -1."""
    if type(value) is int:
        return value if -_LARGEST < value < _LARGEST else -1
    if isinstance(value, str) and value.isascii() and len(value) < 19 and value.removeprefix("-").isdigit():
        return int(value)
    if isinstance(value, float) and abs(value) < _LARGEST and value == int(value):
        return int(value)
    return -1


def last_number(thread: object) -> object:
    """7 of "stream 7"."""
    return thread.split()[-1] if isinstance(thread, str) and thread.strip() else thread


def _listed(value: object) -> list[Any]:
    """A list, also one written as a text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return value if isinstance(value, list) else []


def _nested(value: object) -> tuple[Any, ...]:
    """The sizes of each argument: ``()`` for one that has none."""
    return tuple(map(_sizes, _listed(value)))


def _sizes(value: object) -> tuple[Any, ...]:
    """The sizes of a tensor, or the sizes of each tensor of a list; ``()`` for anything else, also for a mixture of
    both, so that nothing is counted twice."""
    if not isinstance(value, list):
        return ()
    if any(isinstance(entry, list) for entry in value):
        return tuple(map(_whole_numbers, value)) if all(isinstance(entry, list) for entry in value) else ()
    return _whole_numbers(value)


def _whole_numbers(value: list[Any]) -> tuple[int, ...]:
    """Numbers of 0 or more; ``()`` if one is not."""
    sizes = tuple(map(whole_number, value))
    return sizes if min(sizes, default=0) >= 0 else ()


def _type_text(value: object) -> str:
    """A type's name; a list of types means a tensor list."""
    if not isinstance(value, list):
        return _value_text(value)
    kinds = sorted({str(kind) for kind in value})
    return printable(f"TensorList[{kinds[0]}]" if len(kinds) == 1 else "TensorList")


def _value_text(value: object) -> str:
    return "" if value is None else printable(str(value))


def _triple(value: object) -> tuple[int, ...] | None:
    return _whole_numbers(_listed(value)) or None


def _plain(value: object) -> Any:
    """Any other argument as an immutable value."""
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return tuple(map(_value_text, value)) if isinstance(value, list) else printable(str(value))
