"""What a simulated server did: when each request had its tokens, means and percentiles, and how sure these are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from memwall.serving.simulation.scheduler import Tally

#: the share of runs in which the interval of a percentile holds it
CONFIDENCE = 0.9
#: batches of a run (10 to 30: Schmeiser, Batch Size Effects in the Analysis of Simulation Output, 1982), and the value
#: that Student's t of one degree of freedom less does not exceed with 95 %
_BATCHES, _STUDENT = 10, 1.833


class ServedRequest(NamedTuple):
    """One request, seconds from the begin of the run: when it arrived, was first part of a step, had its first token,
    and its last; ``found_tokens`` of its prompt were in the cache."""

    arrival_s: float
    start_s: float
    first_s: float
    end_s: float
    prompt_tokens: int
    generated_tokens: int
    found_tokens: int = 0

    @property
    def wait_s(self) -> float:
        """Seconds in the queue before the first step."""
        return self.start_s - self.arrival_s

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None for a request that makes one token."""
        return (self.end_s - self.first_s) / (self.generated_tokens - 1) if self.generated_tokens > 1 else None

    @property
    def e2e_s(self) -> float:
        """From its arrival to its last token."""
        return self.end_s - self.arrival_s


class Spread(NamedTuple):
    """Mean and percentiles of some seconds; percentiles are None where only the mean is known."""

    mean: float
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the requests that are known; None if none is."""
        known = [value for value in values if value is not None]
        if len(known) < 2:
            return cls(*known * 4) if known else None
        at = statistics.quantiles(known, n=100, method="inclusive")
        return cls(statistics.fmean(known), at[49], at[89], at[98])


@lru_cache(maxsize=1 << 8)
def interval_ranks(count: int, share: float) -> tuple[int, int]:
    """The ranks, from 1, of the ordered values of ``count`` requests between which the quantile ``share`` lies with
    :data:`CONFIDENCE`, if requests are independent: how many are below it is binomial (David and Nagaraja, Order
    Statistics, 2003, 7.1). 0, or one above ``count``: no value bounds it on that side."""
    k = np.arange(1, count + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((count - k + 1) / k))])
    logs += np.arange(count + 1) * math.log(share) + np.arange(count, -1, -1) * math.log1p(-share)
    at_most = np.cumsum(np.exp(logs))
    out = (1 - CONFIDENCE) / 2
    return int(np.searchsorted(at_most, out, side="right")), int(np.searchsorted(at_most, 1 - out)) + 1


def batch_ranks(values: Sequence[float], share: float) -> tuple[int, int]:
    """As :func:`interval_ranks`, of ``values`` in order of arrival, of which neighbours depend on each other. The share
    of values below the quantile has an interval of Student's t by the means of batches in a row (Law, Simulation
    Modeling and Analysis, 2015, 9.5.3), which is read as ranks (Heidelberger and Lewis, Quantile Estimation in
    Dependent Sequences, 1984). The first values that fill no batch are left out; so few that each batch would be empty
    are taken as independent."""
    count, size = len(values), len(values) // _BATCHES
    if not size:
        return interval_ranks(count, share)
    batches = np.asarray(values[count - size * _BATCHES :]).reshape(_BATCHES, size)
    shares = (batches <= np.quantile(batches, share)).mean(axis=1)
    half = _STUDENT * float(shares.std(ddof=1)) / math.sqrt(_BATCHES)
    return max(math.floor(count * (share - half)), 0), min(math.floor(count * (share + half)), count) + 1


def sure_from(share: float) -> int:
    """The fewest requests of which the interval of the quantile ``share`` has an upper end."""
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(share))


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What a simulated server did. ``served`` are the requests after the warm-up, in order of arrival; ``tallies`` are
    of all engines (prompts first) over the whole run."""

    served: tuple[ServedRequest, ...]
    tallies: tuple[Tally, ...]
    span_s: float
    #: mean engines that are on where their number changes
    engines_on: float | None = None

    @cached_property
    def ttft(self) -> Spread:
        """Time to first token, from arrival: with the wait in the queue."""
        return Spread.of(row.ttft_s for row in self.served) or Spread(*[math.nan] * 4)

    @cached_property
    def tpot(self) -> Spread | None:
        """Time per output token after the first, a mean for each request; None where requests make one token."""
        return Spread.of(row.tpot_s for row in self.served)

    @cached_property
    def e2e(self) -> Spread:
        """From arrival to the last token."""
        return Spread.of(row.e2e_s for row in self.served) or Spread(*[math.nan] * 4)

    @cached_property
    def wait(self) -> Spread:
        """In the queue, before any step."""
        return Spread.of(row.wait_s for row in self.served) or Spread(*[math.nan] * 4)

    def interval(self, name: str, share: float) -> tuple[float | None, float | None]:
        """Between which seconds the quantile ``share`` of ``ttft``, ``tpot`` or ``e2e`` lies with :data:`CONFIDENCE`,
        by the means of batches, and no closer than by as many independent requests; None on a side where they are too
        few to say."""
        arrived, ordered = self._values(name)
        ranks = interval_ranks(len(ordered), share), batch_ranks(arrived, share)
        low, high = min(low for low, _ in ranks), max(high for _, high in ranks)
        return ordered[low - 1] if low > 0 else None, ordered[high - 1] if high <= len(ordered) else None

    def _values(self, name: str) -> tuple[list[float], list[float]]:
        """Seconds in the order of arrival, and of size."""
        if name not in self._known_values:
            each = (getattr(row, f"{name}_s") for row in self.served)
            arrived = [value for value in each if value is not None]
            self._known_values[name] = arrived, sorted(arrived)
        return self._known_values[name]

    @cached_property
    def _known_values(self) -> dict[str, tuple[list[float], list[float]]]:
        return {}

    @property
    def requests_per_s(self) -> float:
        """Requests over the seconds from the first arrival to the last token."""
        return len(self.served) / self.span_s

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of the server."""
        return sum(row.generated_tokens for row in self.served) / self.span_s

    @property
    def prompt_tokens_per_s(self) -> float:
        """Tokens of prompts per second, cached ones too."""
        return sum(row.prompt_tokens for row in self.served) / self.span_s

    @property
    def cached_share(self) -> float | None:
        """Share of the tokens of prompts that were in the cache; None where none was."""
        found = sum(row.found_tokens for row in self.served)
        return found / sum(row.prompt_tokens for row in self.served) if found else None

    @property
    def tokens_per_s_per_user(self) -> float | None:
        """One over the mean time per output token."""
        return 1 / self.tpot.mean if self.tpot else None

    @property
    def batch(self) -> float:
        """Mean decoding sequences of an engine that decodes, over the seconds that it runs."""
        return _mean(self._decoding, "batch_s")

    @property
    def cache_use(self) -> float:
        """Mean share of the cache that is taken, over the seconds that the engines run."""
        return _mean(self._decoding, "cache_s")

    @property
    def cache_peak(self) -> float:
        """The largest share of the cache that was taken."""
        return max(tally.cache_peak for tally in self.tallies)

    @property
    def preemptions(self) -> int:
        return sum(tally.preemptions for tally in self.tallies)

    @property
    def full_cache_share(self) -> float:
        """Share of the time in which a request waits for the cache alone."""
        return sum(tally.full_cache_s for tally in self.tallies) / (sum(tally.busy_s for tally in self.tallies) or 1.0)

    @property
    def prompt_share(self) -> float:
        """Share of the steps that have prompts."""
        return sum(tally.prompt_steps for tally in self.tallies) / max(sum(tally.steps for tally in self.tallies), 1)

    @property
    def wall(self) -> str:
        """What requests wait for before their first step, for most of the time: ``cache`` or ``batch``; empty: the step
        that runs."""
        busy_s = sum(tally.busy_s for tally in self.tallies)
        cache_share, batch_share = self.full_cache_share, sum(t.full_batch_s for t in self.tallies) / (busy_s or 1.0)
        if cache_share + batch_share < 1 / 2:
            return ""
        return "cache" if cache_share > batch_share else "batch"

    @property
    def _decoding(self) -> list[Tally]:
        """The engines that decode, if any does."""
        return [tally for tally in self.tallies if tally.batch_s] or list(self.tallies)


def _mean(tallies: Iterable[Tally], name: str) -> float:
    known = list(tallies)
    return sum(getattr(tally, name) for tally in known) / (sum(tally.busy_s for tally in known) or 1.0)
