"""Workload × engines → when each request's tokens came, and what the server did: a simulation of each step.

Arrivals and ends of steps are the events; :mod:`memwall.serving.simulation.scheduler` says what an engine does between
two of them, :mod:`memwall.serving.simulation.fleet` which engine takes a request. The same workload gives the same
result, bit for bit.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from memwall.core.errors import UsageError
from memwall.core.units import size
from memwall.serving.simulation.engine import DEFAULT, Engine, Policy, Steps
from memwall.serving.simulation.fleet import MOST_ENGINES, ONE, Fleet, Replicas
from memwall.serving.simulation.scheduler import Request, Scheduler
from memwall.serving.simulation.served import Requests, ServedRequest
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
    #: how engines of prompts fill a step; None: as the engines that decode
    prompt_policy: Policy | None = None

    def __post_init__(self) -> None:
        counts = self.prompt_engines, self.decode_engines
        if not 1 <= min(counts) <= max(counts) <= MOST_ENGINES or not self.link_bytes_per_s > 0:
            raise UsageError(
                f"want 1 to {MOST_ENGINES:,} engines of each kind, and a link of more than 0 B/s between them"
            )


def simulate_requests(
    steps: Steps | Disaggregated, workload: RequestLoad, policy: Policy = DEFAULT, fleet: Fleet = ONE
) -> Requests:
    """Run a workload through a server: engines that are alike, each with a queue of its own, or engines of prompts and
    engines of decodes.

    Raises:
        UsageError: weights, or a single request, do not fit, a request is longer than the model's context, or both
            replicas and engines of two kinds are asked for.
    """
    server = _PoolServer(steps, policy, fleet)
    for engine in {scheduler.engine for pool in server.pools for scheduler in pool.engines}:
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
    """Pools of engines that a request passes one after another: one, or one for prompts and one for decodes."""

    def __init__(self, steps: Steps | Disaggregated, policy: Policy, fleet: Fleet) -> None:
        self.link_bytes_per_s = math.inf
        if isinstance(steps, Disaggregated):
            if fleet.most > 1:
                raise UsageError("prompts and decodes on separate engines say how many there are: give no replicas")
            self.link_bytes_per_s = steps.link_bytes_per_s
            prompt, decode = Engine(steps.prompt, steps.prompt_policy or policy), Engine(steps.decode, policy)
            prompts = [Scheduler(prompt, prompts_only=True) for _ in range(steps.prompt_engines)]
            decodes = [Scheduler(decode) for _ in range(steps.decode_engines)]
            self.pools = [Replicas(prompts, fleet), Replicas(decodes)]
        else:
            engine = Engine(steps, policy)
            self.pools = [Replicas([Scheduler(engine) for _ in range(fleet.left)], fleet)]
        self._schedulers = [scheduler for pool in self.pools for scheduler in pool.engines]
        #: (seconds, order, pool, request) of requests on their way to a pool
        self._arrivals: list[tuple[float, int, int, Request]] = []
        self._order, self._request_s = itertools.count(), policy.request_s
        #: when the link of each prompt engine is free
        self._link_s: dict[Scheduler, float] = {}

    def run(self, workload: RequestLoad) -> Requests:
        sessions, served = iter(workload.sessions), list[Request]()
        clients = workload.count if workload.concurrency is None else workload.concurrency
        for session in itertools.islice(sessions, clients):
            self._ask(session, 0.0)
        replicas = self.pools[0]
        while True:
            scheduler = min(self._schedulers, key=lambda each: each.end_s)
            arrival_s = self._arrivals[0][0] if self._arrivals else math.inf
            if replicas.check_s < (next_s := min(arrival_s, scheduler.end_s)) < math.inf:
                replicas.scale(next_s)
            elif arrival_s <= scheduler.end_s and self._arrivals:
                now_s, _, pool, request = heapq.heappop(self._arrivals)
                self.pools[pool].pick(request, now_s).submit(request, now_s)
            elif scheduler.end_s == math.inf:
                return self._result(served, workload)
            else:
                served += self._advance(scheduler, sessions)

    def _advance(self, scheduler: Scheduler, sessions: Iterator[tuple[AskedRequest, ...]]) -> list[Request]:
        """End what an engine does now; the requests that have all their tokens, whose clients ask again."""
        done = []
        for request in scheduler.advance():
            if request.made < request.asked.generated_tokens and scheduler.prompts_only:
                self._transfer(request, scheduler)
                continue
            done.append(request)
            if request.later:
                self._ask(request.later, request.end_s + request.later[0].think_s)
            else:
                for session in itertools.islice(sessions, 1):
                    self._ask(session, request.end_s)
        return done

    def _ask(self, turns: tuple[AskedRequest, ...], now_s: float) -> None:
        asked, arrival_s = turns[0], now_s if turns[0].arrival_s is None else turns[0].arrival_s
        request = Request(asked, arrival_s, asked.prompt_tokens, asked.cached_tokens, later=turns[1:])
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
                r.found,
            )
            for r in served
        ]
        rows = sorted(rows, key=lambda row: row.arrival_s)[workload.warmup :]
        span_s = max(row.end_s for row in rows) - rows[0].arrival_s
        tallies = tuple(scheduler.tally for scheduler in self._schedulers)
        return Requests(served=tuple(rows), tallies=tallies, span_s=span_s, engines_on=self.pools[0].mean_on)
