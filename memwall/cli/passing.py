"""The passing line of a command at work on a terminal: what it does, and where that is counted and takes more than
:data:`BAR_AFTER_S` the rate, and of a known total a bar and the time left.

No thread draws it, so that a process with one may fork, and the cursor stays as it is, so that one which is killed
leaves a whole terminal: both are why this is no ``rich.progress``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

from memwall.core.progress import SELDOM_S, CountedLine
from memwall.core.structure import printable
from memwall.core.units import duration

#: seconds before there is a bar
BAR_AFTER_S = 2.0
#: cells of a bar
_CELLS = 20


class _Counted(NamedTuple):
    """Work that is counted: its first word and its total; and when it was first heard of, and how far it was then."""

    stage: tuple[str, int]
    began: float
    done: int


class PassingLine:
    """One line at the bottom of a terminal, which changes when there is something new to say."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._began = float("inf")
        self._drawn = float("-inf")
        self._shown = False
        self._counted: _Counted | None = None
        self._done = 0

    def show(self, message: str) -> None:
        """Replace the line."""
        now = self._clock()
        self._began = min(self._began, now)
        text, figures = message, ""
        if isinstance(message, CountedLine):
            stage = message.what.partition(" ")[0], message.total
            if self._counted is None or self._counted.stage != stage or message.done < self._done:
                self._counted = _Counted(stage, now, message.done)
            elif now - self._drawn < SELDOM_S and message.done != message.total:
                return
            self._drawn, self._done = now, message.done
            if now - self._began >= BAR_AFTER_S:
                text, figures = message.what, _figures(message, now - self._counted.began, self._counted.done)
        width = shutil.get_terminal_size().columns - 1
        line = f"{printable(text)[: max(width - len(figures), 0)]}{figures}"[:width]
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def _figures(line: CountedLine, took_s: float, before: int) -> str:
    """The bar, the rate since there were ``before`` parts, and the time left at that rate; without a total the rate
    alone."""
    full = _CELLS * line.done // max(line.total, 1)
    text = f" [{'#' * full}{'.' * (_CELLS - full)}] {line.counts}" if line.total else f", {line.counts}"
    done = line.done - before
    if done <= 0 or took_s <= 0:
        return text
    each_s = took_s / done
    rate = f"{1 / each_s:,.0f}/s" if each_s < 0.1 else f"{duration(each_s)} each"
    return f"{text}, {rate}" + (f", {duration(each_s * (line.total - line.done))} left" if line.total else "")
