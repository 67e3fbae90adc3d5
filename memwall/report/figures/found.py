"""What finds the row of a kernel from its marks in pictures: words that the page's filter takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from memwall.analysis.table import KernelRow
from memwall.report.document import clean


class RowWords(NamedTuple):
    """Kernel, module, phase and problem of a row; ``number`` tells rows apart that share these, and is 0 of one
    alone."""

    words: str
    number: int

    @property
    def key(self) -> str:
        """What no other row of the schedule has."""
        return f"{self.words} #{self.number}" if self.number else self.words


def found_by(rows: Iterable[KernelRow]) -> list[RowWords]:
    """What each row of a schedule is found by; ``rows`` in the order of their first launches."""
    words = [" ".join(filter(None, map(clean, (r.name, r.module, r.phase, r.problem)))) for r in rows]
    alike, seen = Counter(words), Counter[str]()
    found = []
    for text in words:
        seen[text] += 1
        found.append(RowWords(text, seen[text] if alike[text] > 1 else 0))
    return found
