"""Lines of progress that count: text like all others, of which a command draws a bar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

T = TypeVar("T")


class CountedLine(str):
    """A line that says how far some work is: ``what``, and ``done`` of ``total`` of its parts."""

    __slots__ = ("done", "total", "what")
    what: str
    done: int
    total: int

    def __new__(cls, what: str, done: int, total: int, text: str = "") -> CountedLine:
        """``text`` is the whole line, where it is more than what and the counts."""
        line = super().__new__(cls, text or f"{what}, {done:,} of {total:,}")
        line.what, line.done, line.total = what, done, total
        return line


def counting(items: Collection[T], what: str, say: Callable[[str], None]) -> Iterator[T]:
    """The items, with a line before each that says how many are done."""
    for done, item in enumerate(items):
        say(CountedLine(what, done, len(items)))
        yield item
