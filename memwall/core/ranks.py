"""Ranks of a process group as text, which a record keeps with each collective: ``0-7``, ``3-63:8``, ``0,5-7``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as runs of equal steps, ``first-last:step`` (as Linux writes lists of CPUs); ``:1`` is left out."""
    parts, start = [], 0
    while start < len(ranks):
        end = start + 1
        step = ranks[end] - ranks[start] if end < len(ranks) else 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - start == 2 and step != 1:  # two ranks apart begin no run
            end -= 1
        first, last = ranks[start], ranks[end - 1]
        parts.append(f"{first}" if first == last else f"{first}-{last}{f':{step}' if step != 1 else ''}")
        start = end
    return ",".join(parts)


@lru_cache(maxsize=1024)
def read_ranks(text: str) -> tuple[int, ...]:
    """The ranks that :func:`ranks_text` wrote.

    Raises:
        ValueError: it did not.
    """
    found: list[int] = []
    for part in text.split(","):
        run, _, step = part.partition(":")
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return tuple(found)
