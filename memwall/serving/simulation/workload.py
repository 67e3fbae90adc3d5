"""What clients ask of a server: lengths of prompts and answers, and when requests arrive."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from memwall.core.errors import UsageError, suggest
from memwall.core.files import read_csv
from memwall.serving.simulation.engine import BLOCK_TOKENS

N = TypeVar("N", int, float)
#: columns of a trace: seconds after its begin, tokens, tokens
TRACE_COLUMNS = ("arrival_s", "prompt_tokens", "generated_tokens")

#: requests by default: so many for each client of a closed loop, but no fewer than the second number
_PER_CLIENT, _FEWEST = 10, 200

#: typical lengths of a prompt, and of an answer
_TYPICAL = 16

_SHARES = re.compile(r"(\d*\.?\d+)(?:\s*-\s*(\d*\.?\d+))?")


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
        if not 0 < self.low <= self.high:
            raise UsageError(f"lengths of {self.low:g} to {self.high:g} of nominal; want a range such as 0.8-1.0")

    @classmethod
    def parse(cls, nominal: int, shares: str = "1") -> Lengths:
        """From ``'0.8-1.0'`` of nominal, or one share. Raises ``UsageError``: no range."""
        found = _SHARES.fullmatch(shares.strip())
        if found is None:
            raise UsageError(f"cannot read the range {shares[:40]!r}; want one such as 0.8-1.0")
        return cls(nominal, float(found[1]), float(found[2] or found[1]))

    @property
    def least(self) -> int:
        return max(int(self.nominal * self.low), 1) + self.fixed

    @property
    def most(self) -> int:
        return max(int(self.nominal * self.high), 1) + self.fixed

    def evenly(self, count: int) -> list[int]:
        """So many lengths that stand for all."""
        span = self.most - self.least
        return [self.least + round(span * (i + 0.5) / count) for i in range(count if span else 1)]


class AskedRequest(NamedTuple):
    """One request. ``arrival_s`` is None where a client sends it when its last one has ended; ``cached_tokens`` of the
    prompt are in the cache already."""

    arrival_s: float | None
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """Requests and when they arrive: from ``concurrency`` clients that each wait for an answer before they ask again,
    at random with ``rate_per_s`` (Poisson), or as a ``trace`` says. Lengths are tokens; ``prefix_hit`` is the share of
    a prompt that is in the cache, in whole blocks; ``requests`` in all (None: ten for each client, 200 or more), the
    first ``warmup`` of them left out of all statistics. The same seed gives the same requests."""

    prompt: Lengths = Lengths(1024)
    generate: Lengths = Lengths(256)
    concurrency: int | None = None
    rate_per_s: float | None = None
    trace: tuple[AskedRequest, ...] = ()
    prefix_hit: float = 0.0
    requests: int | None = None
    warmup: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        arrivals = [self.concurrency is not None, self.rate_per_s is not None, bool(self.trace)]
        if sum(arrivals) != 1:
            raise UsageError("requests arrive in one way: give concurrency, rate_per_s or a trace")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"{self.concurrency} clients ask nothing; want a concurrency of 1 or more")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < float("inf"):
            raise UsageError(f"{self.rate_per_s:g} requests per second; want a rate above 0, such as 1")
        if not 0 <= self.prefix_hit <= 1:
            raise UsageError(f"a share of {self.prefix_hit:g} of the prompt in the cache; want 0 to 1")
        if self.count < 1:
            raise UsageError(f"{self.requests} requests are no workload; want 1 or more")
        if not 0 <= self.warmup < self.count:
            raise UsageError(f"a warm-up of {self.warmup} of {self.count} requests; {self.count - 1} is the most")

    @property
    def count(self) -> int:
        """Requests in all."""
        whole = len(self.trace) or max(_PER_CLIENT * (self.concurrency or 0), _FEWEST)
        return whole if self.requests is None else min(self.requests, len(self.trace) or self.requests)

    @property
    def longest(self) -> AskedRequest:
        """The request with the most tokens that can come."""
        if self.trace:
            return max(self.trace, key=lambda asked: asked.prompt_tokens + asked.generated_tokens)
        return AskedRequest(None, self.prompt.most, self.generate.most)

    def cached(self, prompt_tokens: int) -> int:
        """Tokens of a prompt that are in the cache: whole blocks, and the last token never."""
        return min(int(self.prefix_hit * prompt_tokens), prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def typical(self) -> list[AskedRequest]:
        """Requests that stand for all: the trace, or lengths over their ranges, evenly."""
        prompts, generated = self.prompt.evenly(_TYPICAL), self.generate.evenly(_TYPICAL)
        each = [AskedRequest(None, prompt, tokens) for prompt in prompts for tokens in generated]
        return [asked._replace(cached_tokens=self.cached(asked.prompt_tokens)) for asked in self.trace or each]

    def asked(self) -> Iterator[AskedRequest]:
        """The requests in the order of their arrival."""
        draw, clock_s = random.Random(self.seed), 0.0
        for asked in self.trace[: self.count]:
            yield asked._replace(cached_tokens=self.cached(asked.prompt_tokens))
        for _ in range(0 if self.trace else self.count):
            clock_s += draw.expovariate(self.rate_per_s) if self.rate_per_s else 0.0
            prompt = draw.randint(self.prompt.least, self.prompt.most)
            generate = draw.randint(self.generate.least, self.generate.most)
            yield AskedRequest(clock_s if self.rate_per_s else None, prompt, generate, self.cached(prompt))


def read_trace(path: str | os.PathLike[str]) -> tuple[AskedRequest, ...]:
    """The requests of a CSV file with the columns :data:`TRACE_COLUMNS`, ordered by arrival, the first at 0 s.

    Raises:
        UsageError: no such file, a column is missing (names the nearest), a number is wrong, or there is no row.
    """
    rows = []
    for line, record in read_csv(path):
        for missing in (column for column in TRACE_COLUMNS if column not in record):
            raise UsageError(f"{path}: no column {missing}; {suggest(missing, record)}")
        rows.append(_asked(record, f"{path}:{line}"))
    if not rows:
        raise UsageError(f"{path} has no request; want rows of {', '.join(TRACE_COLUMNS)}")
    rows.sort(key=lambda asked: asked.arrival_s or 0.0)
    begin_s = rows[0].arrival_s or 0.0
    return tuple(asked._replace(arrival_s=(asked.arrival_s or 0.0) - begin_s) for asked in rows)


def _cell(record: Mapping[str, str], name: str, where: str, kind: type[N]) -> N:
    """Read one cell of a row as a number. Raises a UsageError that names the column where the cell is not one."""
    try:
        return kind(record[name])
    except ValueError:
        what = "a whole number" if kind is int else "a number of seconds"
        raise UsageError(f"{where}: {name} is {record[name][:40]!r}, not {what}") from None


def _asked(record: Mapping[str, str], where: str) -> AskedRequest:
    arrival_s, prompt, generated = (
        _cell(record, "arrival_s", where, float),
        *(_cell(record, name, where, int) for name in TRACE_COLUMNS[1:]),
    )
    if not 0 <= arrival_s < float("inf") or min(prompt, generated) < 1:
        raise UsageError(f"{where}: want an arrival of 0 s or later and 1 token or more of each kind")
    return AskedRequest(arrival_s, prompt, generated)
