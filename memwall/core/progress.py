"""Lines of progress that count: text like all others, of which a command draws a bar."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: seconds between two lines that count, for who is told seldom, and between two drawings of a bar
SELDOM_S = 0.1


class CountedLine(str):
    """A line that says how far some work is: ``what``, and ``done`` of ``total`` of its parts; 0: nobody knows of how
    many."""

    __slots__ = ("done", "total", "what")
    what: str
    done: int
    total: int

    def __new__(cls, what: str, done: int, total: int = 0, text: str = "") -> CountedLine:
        """``text`` is the whole line, where it is more than what and the counts."""
        line = super().__new__(cls, text or f"{what}, {_count(done, total)}")
        line.what, line.done, line.total = what, done, total
        return line

    def __reduce__(self) -> tuple[type[CountedLine], tuple[str, int, int, str]]:
        """What a pickle makes it of again."""
        return CountedLine, (self.what, self.done, self.total, str(self))

    @property
    def counts(self) -> str:
        """``3 of 12``, or ``1,200`` where nobody knows of how many."""
        return _count(self.done, self.total)


def _count(done: int, total: int) -> str:
    return f"{done:,} of {total:,}" if total else f"{done:,}"


#: who hears what is told
_hears: ContextVar[Callable[[str], None] | None] = ContextVar("_hears", default=None)


def tell(line: str) -> None:
    """Say a line to whoever listens: a command, or who has called a public function with ``progress``."""
    if (say := _hears.get()) is not None:
        say(line)


@contextlib.contextmanager
def listening(say: Callable[[str], None] | None) -> Iterator[None]:
    """While open, ``say`` hears what is told in this thread; None: whoever listens already."""
    before = _hears.set(say or _hears.get())
    try:
        yield
    finally:
        _hears.reset(before)


def heard(function: F) -> F:
    """A public function whose ``progress`` is called with what it, and all below it, tells."""

    @wraps(function)
    def run(*arguments: Any, progress: Callable[[str], None] | None = None, **options: Any) -> Any:
        with listening(progress):
            return function(*arguments, **options)

    return run  # type: ignore[return-value]


def seldom(say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """What says lines that count ten times a second at most, and all others: for lines that go far."""
    last_s = float("-inf")

    def tell(line: str) -> None:
        nonlocal last_s
        if not isinstance(line, CountedLine) or clock() - last_s >= SELDOM_S:
            last_s = clock()
            say(line)

    return tell


def counting(items: Collection[T], what: str) -> Iterator[T]:
    """The items, with a line before each that tells how many are done."""
    for done, item in enumerate(items):
        tell(CountedLine(what, done, len(items)))
        yield item
