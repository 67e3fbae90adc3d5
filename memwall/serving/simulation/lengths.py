"""How long prompts and answers are: a number, a range, a lognormal distribution, a histogram, or pairs of both."""

from __future__ import annotations

import bisect
import itertools
import math
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean
from typing import NamedTuple

from memwall.core.errors import UsageError, suggest
from memwall.core.files import read_csv, whole

_SHARES = re.compile(r"(\d*\.?\d+)(?:\s*-\s*(\d*\.?\d+))?")
_LOGNORMAL = re.compile(r"lognormal:(\d*\.?\d+)(?:,(\d*\.?\d+))?")

#: share of a lognormal distribution on each side that counts as its end, so that there is a longest request
_TAIL = 1e-3
#: the largest standard deviation of logarithms: with it one request in fifteen has more than the mean
_MOST_SIGMA = 3.0
#: parts of each length that stands for many, of which it is the mean
_PARTS = 64


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens, whole numbers spread evenly from ``low`` to ``high`` times ``nominal``, and ``fixed`` more."""

    nominal: int
    low: float = 1.0
    high: float = 1.0
    fixed: int = 0

    def __post_init__(self) -> None:
        if self.nominal < 1:
            raise UsageError(f"a length of {self.nominal} tokens; want 1 or more")
        if not 0 < self.low <= self.high < math.inf:
            raise UsageError(f"lengths of {self.low:g} to {self.high:g} of nominal; want a range such as 0.8-1.0")

    @property
    def least(self) -> int:
        return max(int(self.nominal * self.low), 1) + self.fixed

    @property
    def most(self) -> int:
        return max(int(self.nominal * self.high), 1) + self.fixed

    @property
    def mean(self) -> float:
        return (self.least + self.most) / 2

    @property
    def spread(self) -> str:
        """How they spread around nominal, in words; empty: they do not."""
        if self.low == self.high:
            return "" if self.low == 1 else f"{self.low:g} of that"
        return f"{self.low:g} to {self.high:g} of that"

    def draw(self, source: random.Random) -> int:
        """One of the lengths at random."""
        return source.randint(self.least, self.most)

    def evenly(self, count: int) -> list[int]:
        """So many lengths that stand for all."""
        span = self.most - self.least
        return [self.least + round(span * (i + 0.5) / count) for i in range(count if span else 1)]


class _Quantiles(Lengths):
    """Lengths by their quantile function."""

    __slots__ = ()

    def at(self, share: float) -> int:
        """The length that this share of all does not exceed."""
        raise NotImplementedError

    @property
    def least(self) -> int:
        return self.at(0.0)

    @property
    def most(self) -> int:
        return self.at(1.0)

    def draw(self, source: random.Random) -> int:
        return self.at(source.random())

    def evenly(self, count: int) -> list[int]:
        parts = count * _PARTS
        found = [self.at((i + 0.5) / parts) for i in range(parts)]
        return [round(fmean(found[i : i + _PARTS])) for i in range(0, parts, _PARTS)]


@dataclass(frozen=True, slots=True)
class LognormalLengths(_Quantiles):
    """Lengths whose logarithm is normal with the standard deviation ``sigma``; ``nominal`` is their mean. The 0.1 % at
    each end count as the quantile there."""

    sigma: float = 0.0

    def __post_init__(self) -> None:
        Lengths.__post_init__(self)
        if not 0 <= self.sigma <= _MOST_SIGMA:
            raise UsageError(f"a lognormal spread of {self.sigma:g}; want 0 to {_MOST_SIGMA:g}")

    @property
    def mean(self) -> float:
        return float(self.nominal + self.fixed)

    @property
    def spread(self) -> str:
        return "lognormal around that"

    def at(self, share: float) -> int:
        deviations = NormalDist().inv_cdf(min(max(share, _TAIL), 1 - _TAIL))
        scale = math.exp(self.sigma * deviations) / _lognormal_mean(self.sigma)
        return max(round(self.nominal * scale), 1) + self.fixed


@cache
def _lognormal_mean(sigma: float) -> float:
    """The mean of a lognormal distribution of median 1 whose ends count as the quantiles there: its part between them
    (a normal distribution, ``sigma`` further on), and the ends."""
    standard = NormalDist()
    low, high = standard.inv_cdf(_TAIL), standard.inv_cdf(1 - _TAIL)
    between = math.exp(sigma**2 / 2) * (standard.cdf(high - sigma) - standard.cdf(low - sigma))
    return between + _TAIL * (math.exp(sigma * low) + math.exp(sigma * high))


@dataclass(frozen=True, slots=True)
class CountedLengths(_Quantiles):
    """Lengths of a histogram: ``tokens`` in rising order, and how many are no longer than each."""

    tokens: tuple[int, ...] = ()
    up_to: tuple[int, ...] = ()

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> CountedLengths:
        """From how many there are of each length; ``nominal`` is their mean."""
        rows = sorted((tokens, count) for tokens, count in counts.items() if count)
        up_to = tuple(itertools.accumulate(count for _, count in rows))
        mean = sum(tokens * count for tokens, count in rows) / up_to[-1]
        return cls(max(round(mean), 1), tokens=tuple(tokens for tokens, _ in rows), up_to=up_to)

    @property
    def spread(self) -> str:
        return "in the mean, as counted"

    @property
    def mean(self) -> float:
        each = zip(self.tokens, self.up_to, (0, *self.up_to), strict=False)
        return sum(tokens * (up_to - before) for tokens, up_to, before in each) / self.up_to[-1] + self.fixed

    def at(self, share: float) -> int:
        place = bisect.bisect_right(self.up_to, share * self.up_to[-1])
        return self.tokens[min(place, len(self.tokens) - 1)] + self.fixed


class RequestLengths(NamedTuple):
    """Lengths of prompts and of answers, independent of each other; ``pairs`` (prompt, answer) are of one request each
    and take their place where there are any, and ``source`` says where they come from."""

    prompt: Lengths
    generate: Lengths
    pairs: tuple[tuple[int, int], ...] = ()
    source: str = ""


#: columns of a file of lengths: of pairs, and of a histogram of prompts and one of answers
PAIR_COLUMNS, HISTOGRAM_COLUMNS = ("prompt_tokens", "generated_tokens"), ("tokens", "prompts", "answers")


def parse_lengths(prompt: int, generate: int, spread: str = "1") -> RequestLengths:
    """How lengths spread around ``prompt`` and ``generate`` tokens: ``0.8-1.0`` of both, evenly; ``lognormal:0.6``, or
    ``lognormal:0.9,0.6`` of prompts and of answers; or the path of a CSV file, which has all lengths.

    Raises:
        UsageError: none of these, or as :func:`read_lengths`.
    """
    text = spread.strip()
    if found := _SHARES.fullmatch(text):
        low, high = float(found[1]), float(found[2] or found[1])
        return RequestLengths(Lengths(prompt, low, high), Lengths(generate, low, high))
    if found := _LOGNORMAL.fullmatch(text):
        of_prompts, of_answers = float(found[1]), float(found[2] or found[1])
        return RequestLengths(LognormalLengths(prompt, sigma=of_prompts), LognormalLengths(generate, sigma=of_answers))
    if text.lower().endswith((".csv", ".csv.gz")):
        return read_lengths(text)
    raise UsageError(
        f"cannot read the lengths {text[:40]!r}; want one such as 0.8-1.0, lognormal:0.6 or a file that ends in .csv"
    )


def read_lengths(path: str | os.PathLike[str]) -> RequestLengths:
    """The lengths of a CSV file: a request a row (:data:`PAIR_COLUMNS`), or how many prompts and answers have each
    length (:data:`HISTOGRAM_COLUMNS`).

    Raises:
        UsageError: no such file, a column is missing (names the nearest), a cell is no whole number, or there are no
            lengths.
    """
    rows = list(read_csv(path))
    header = rows[0][1] if rows else {}
    columns = HISTOGRAM_COLUMNS if "tokens" in header else PAIR_COLUMNS
    for missing in (name for name in columns if rows and name not in header):
        raise UsageError(f"{path}: no column {missing}; {suggest(missing, header)}")
    table = [_whole(record, columns, f"{path}:{line}") for line, record in rows]
    if columns == PAIR_COLUMNS:
        if not table:
            raise UsageError(f"{path} has no request; want rows of {', '.join(PAIR_COLUMNS)}")
        return _of_pairs(table, str(path))
    prompts, answers = Counter[int](), Counter[int]()
    for tokens, *counts in table:
        for side, count in zip((prompts, answers), counts, strict=True):
            side[tokens] += count
    for name, side in zip(HISTOGRAM_COLUMNS[1:], (prompts, answers), strict=True):
        if not side.total():
            raise UsageError(f"{path}: the column {name} counts nothing")
    return RequestLengths(CountedLengths.of(prompts), CountedLengths.of(answers), source=str(path))


def _of_pairs(table: Sequence[Sequence[int]], source: str) -> RequestLengths:
    prompts, answers = (CountedLengths.of(Counter(side)) for side in zip(*table, strict=True))
    return RequestLengths(prompts, answers, tuple((prompt, answer) for prompt, answer in table), source)


def _whole(record: Mapping[str, str], columns: Sequence[str], where: str) -> list[int]:
    """The cells of a row as whole numbers: tokens, of which there is 1 or more, and counts, 0 or more."""
    found = []
    for name in columns:
        least = int(name.endswith("tokens"))
        if (number := whole(record[name])) is None or number < least:
            cell = record[name].strip()[:40]
            raise UsageError(f"{where}: {name} is {cell!r}, not a whole number of {least} or more")
        found.append(number)
    return found
