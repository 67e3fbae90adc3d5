"""Lines of progress that count: text like all others, of which a command draws a bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
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

    def __reduce__(self) -> tuple[type[CountedLine], tuple[str, int, int, str]]:
        """What a pickle makes it of again."""
        return CountedLine, (self.what, self.done, self.total, str(self))


#: who hears what is told
_hears: ContextVar[Callable[[str], None] | None] = ContextVar("_hears", default=None)


def tell(line: str) -> None:
    """Say a line to whoever listens: for work too deep below a command to be handed its messages, such as a compiler's
    or a child process's."""
    if (say := _hears.get()) is not None:
        say(line)


@contextlib.contextmanager
def listening(say: Callable[[str], None]) -> Iterator[None]:
    """While open, ``say`` hears what is told in this thread."""
    before = _hears.set(say)
    try:
        yield
    finally:
        _hears.reset(before)


def counting(items: Collection[T], what: str, say: Callable[[str], None]) -> Iterator[T]:
    """The items, with a line before each that says how many are done."""
    for done, item in enumerate(items):
        say(CountedLine(what, done, len(items)))
        yield item
