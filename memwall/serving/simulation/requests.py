"""Workload × engine → when each request's tokens came, and what the server did: a simulation of each step.

Arrivals and ends of steps are the events; :mod:`memwall.serving.simulation.scheduler` says what an engine does between
two of them. The same workload gives the same result, bit for bit.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from memwall.core.errors import UsageError
from memwall.core.units import size
from memwall.serving.simulation.engine import DEFAULT, Engine, Policy, Steps
from memwall.serving.simulation.scheduler import Request, Scheduler, Tally
from memwall.serving.simulation.workload import AskedRequest, RequestLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregated:
    """Engines for prompts and engines for decodes. A prompt's cache goes over ``link_bytes_per_s`` of each GPU, one
    after another from each prompt engine; the first token is sent when the decode engine takes the request."""

    prompt: Steps
    decode: Steps
    prompt_engines: int = 1
    decode_engines: int = 1
    link_bytes_per_s: float

    def __post_init__(self) -> None:
        if min(self.prompt_engines, self.decode_engines) < 1 or not self.link_bytes_per_s > 0:
            raise UsageError("want 1 or more engines of each kind, and a link of more than 0 B/s between them")


class ServedRequest(NamedTuple):
    """One request, seconds from the begin of the run: when it arrived, was first part of a step, had its first token,
    and its last."""

    arrival_s: float
    start_s: float
    first_s: float
    end_s: float
    prompt_tokens: int
    generated_tokens: int

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


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What a simulated server did. ``served`` are the requests after the warm-up, in order of arrival; ``tallies`` are
    of all engines (prompts first) over the whole run."""

    served: tuple[ServedRequest, ...]
    tallies: tuple[Tally, ...]
    span_s: float

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
    def prompt_share(self) -> float:
        """Share of the steps that have prompts."""
        return sum(tally.prompt_steps for tally in self.tallies) / max(sum(tally.steps for tally in self.tallies), 1)

    @property
    def wall(self) -> str:
        """What requests wait for before their first step, for most of the time: ``cache`` or ``batch``; empty: the step
        that runs."""
        cache_s = sum(tally.full_cache_s for tally in self.tallies)
        batch_s = sum(tally.full_batch_s for tally in self.tallies)
        if cache_s + batch_s < sum(tally.busy_s for tally in self.tallies) / 2:
            return ""
        return "cache" if cache_s > batch_s else "batch"

    @property
    def _decoding(self) -> list[Tally]:
        """The engines that decode, if any does."""
        return [tally for tally in self.tallies if tally.batch_s] or list(self.tallies)


def _mean(tallies: Iterable[Tally], name: str) -> float:
    known = list(tallies)
    return sum(getattr(tally, name) for tally in known) / (sum(tally.busy_s for tally in known) or 1.0)


def simulate_requests(steps: Steps | Disaggregated, workload: RequestLoad, policy: Policy = DEFAULT) -> Requests:
    """Run a workload through a server.

    Raises:
        UsageError: weights, or a single request, do not fit, or a request is longer than the model's context.
    """
    server = _PoolServer(steps, policy)
    for engine in {scheduler.engine for pool in server.pools for scheduler in pool}:
        check_longest(engine, workload)
    return server.run(workload)


def check_longest(engine: Engine, workload: RequestLoad) -> None:
    """Refuse a workload whose longest request the engine cannot hold, by a ``UsageError``."""
    asked, most = workload.longest, engine.steps.max_context
    prompt, generated = asked.prompt_tokens, asked.generated_tokens
    if most is not None and prompt + generated > most:
        fitting = f"a prompt of {most - generated:,}" if most > generated else f"{most - 1:,} tokens of both"
        raise UsageError(
            f"a prompt of {prompt:,} tokens and {generated:,} generated are beyond the {most:,} positions"
            f" of the model; {fitting} is the most"
        )
    needed = engine.kv_bytes(prompt + generated + engine.policy.verified)
    if needed > engine.cache_bytes:
        raise UsageError(
            f"the cache of one request of {prompt + generated:,} tokens is {size(needed)} on each GPU, and"
            f" {size(engine.cache_bytes)} are free; {_most_tokens(engine):,} tokens fit"
        )


def _most_tokens(engine: Engine) -> int:
    """The most tokens that one request may have."""
    low, high = 0, 1
    while engine.kv_bytes(high) <= engine.cache_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if engine.kv_bytes(middle) <= engine.cache_bytes else (low, middle)
    return max(low - engine.policy.verified, 0)


class _PoolServer:
    """Pools of engines that a request passes one after another: one, or that of prompts and that of decodes."""

    def __init__(self, steps: Steps | Disaggregated, policy: Policy) -> None:
        self.link_bytes_per_s = math.inf
        if isinstance(steps, Disaggregated):
            self.link_bytes_per_s = steps.link_bytes_per_s
            prompt, decode = Engine(steps.prompt, policy), Engine(steps.decode, policy)
            prompts = [Scheduler(prompt, prompts_only=True) for _ in range(steps.prompt_engines)]
            self.pools = [prompts, [Scheduler(decode) for _ in range(steps.decode_engines)]]
        else:
            self.pools = [[Scheduler(Engine(steps, policy))]]
        self._schedulers = [scheduler for pool in self.pools for scheduler in pool]
        #: (seconds, order, pool, request) of those on their way to a pool
        self._arrivals: list[tuple[float, int, int, Request]] = []
        self._order, self._request_s = itertools.count(), policy.request_s
        #: when the link of each prompt engine is free
        self._link_s: dict[Scheduler, float] = {}

    def run(self, workload: RequestLoad) -> Requests:
        asked, served = workload.asked(), list[Request]()
        clients = workload.count if workload.concurrency is None else workload.concurrency
        for each in itertools.islice(asked, clients):
            self._ask(each, 0.0)
        while True:
            scheduler = min(self._schedulers, key=lambda each: each.end_s)
            if self._arrivals and self._arrivals[0][0] <= scheduler.end_s:
                now_s, _, pool, request = heapq.heappop(self._arrivals)
                min(self.pools[pool], key=lambda each: each.load).submit(request, now_s)
                continue
            if scheduler.end_s == math.inf:
                return self._result(served, workload)
            for request in scheduler.advance():
                if request.made < request.asked.generated_tokens and scheduler.prompts_only:
                    self._transfer(request, scheduler)
                    continue
                served.append(request)
                for each in itertools.islice(asked, 1):
                    self._ask(each, request.end_s)

    def _ask(self, asked: AskedRequest, now_s: float) -> None:
        arrival_s = now_s if asked.arrival_s is None else asked.arrival_s
        request = Request(asked, arrival_s, asked.prompt_tokens, asked.cached_tokens)
        heapq.heappush(self._arrivals, (arrival_s + self._request_s, next(self._order), 0, request))

    def _transfer(self, request: Request, source: Scheduler) -> None:
        """Send the cache of a prompt to the engines that decode."""
        begin_s = max(request.end_s, self._link_s.get(source, 0.0))
        self._link_s[source] = end_s = begin_s + source.engine.kv_bytes(request.prompt) / self.link_bytes_per_s
        heapq.heappush(self._arrivals, (end_s, next(self._order), 1, request))

    def _result(self, served: list[Request], workload: RequestLoad) -> Requests:
        rows = [
            ServedRequest(
                r.arrival_s,
                r.start_s or 0.0,
                r.first_s or 0.0,
                r.end_s,
                r.asked.prompt_tokens,
                r.asked.generated_tokens,
            )
            for r in served
        ]
        rows = sorted(rows, key=lambda row: row.arrival_s)[workload.warmup :]
        span_s = max(row.end_s for row in rows) - rows[0].arrival_s
        return Requests(served=tuple(rows), tallies=tuple(s.tally for s in self._schedulers), span_s=span_s)
