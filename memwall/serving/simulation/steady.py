"""Workload × engine → the steady state of a server, without a simulation: means of time and throughput.

With ``n`` requests in the engine, the tokens of prompts that wait to be computed are a Markov chain over its steps: a
step takes as many as its budget allows, and each of the other requests, which decode, ends with probability 1 / (its
decode steps) and brings a new prompt. The stationary chain gives the requests per second with ``n`` clients, and
Little's law the times. Under Poisson arrivals the prompts come at random, as fast as requests end, and the engine is a
server whose speed depends on the ``n`` it holds (a flow-equivalent server; Chandy, Herzog and Woo 1975), which gives
the distribution of ``n``; requests over the largest batch wait. Lengths are taken at their means, and requests as
independent of each other: requests of equal lengths that once began together end together, and a simulation says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from memwall.core.errors import UsageError
from memwall.serving.simulation.engine import DEFAULT, Engine, Policy, Steps, between
from memwall.serving.simulation.requests import check_longest
from memwall.serving.simulation.served import Spread
from memwall.serving.simulation.workload import RequestLoad

#: parts of a step's budget that the chain distinguishes, the most states that it may have, and the share of the last
#: one from which a chain that is cut there is another
_PARTS, _MOST_STATES, _CUT = 8, 256, 1e-4

#: bits of the nodes of the interpolation over eighths of prompts, and over the decodes of their step
_NODE_BITS = 3

#: above this share of the largest rate there is no steady state that requests would see
_OVERLOAD = 0.98

#: where the means are no longer within 5 % (TPOT) and 15 % (TTFT) of simulations of toy engines: rate over the largest
#: rate; mean work of waiting prompts over a request's decodes; share of steps with prompts, where few requests wait
_NEAR_OVERLOAD, _STALLS, _FULL_STEPS, _FEW = 0.75, 0.015, 0.97, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Means of a server that has run for long; names and units as of
    :class:`~memwall.serving.simulation.requests.Requests`. ``largest_batch`` sequences fit into the cache and the
    policy, with which the server makes ``most_requests_per_s``. The clients' first requests all come at once, with a
    mean TTFT of ``first_wave_s``; ``run_ttft_s`` is of a run of as many requests as the workload has, the first
    ones with it, which is what benchmarks report. ``overloaded`` says so (then the batch is the largest, and the wait
    has no end), ``doubt`` where a simulation is more exact, and why; else they are empty."""

    ttft: Spread
    tpot: Spread
    requests_per_s: float
    tokens_per_s: float
    prompt_tokens_per_s: float
    batch: float
    cache_use: float
    prompt_share: float
    largest_batch: int
    most_requests_per_s: float
    first_wave_s: float
    run_ttft_s: float
    overloaded: str = ""
    doubt: str = ""
    #: what requests wait for before their first step: ``cache`` or ``batch``; empty: the step that runs
    wall: str = ""

    @property
    def tokens_per_s_per_user(self) -> float:
        """One over the mean time per output token."""
        return 1 / self.tpot.mean


def largest_batch(steps: Steps, workload: RequestLoad, policy: Policy = DEFAULT) -> int:
    """Sequences of mean length, on average half generated, that the cache holds, at most ``max_batch``. Raises as
    :func:`steady_state`."""
    engine = Engine(steps, policy)
    check_longest(engine, workload)
    return _Load(engine, workload).slots


def steady_state(steps: Steps, workload: RequestLoad, policy: Policy = DEFAULT) -> Steady:
    """The means of a workload that goes on for ever; a trace is taken as Poisson arrivals at its mean rate.

    Raises:
        UsageError: weights or a request do not fit, requests generate less than two tokens, come in bursts or some
            time after an answer, or find what others have left in the cache.
    """
    if workload.burst != 1:
        raise UsageError("arrivals that are not Poisson have no closed form: leave out the burst, or --closed-form")
    if workload.think_s:
        raise UsageError("the time between turns has no closed form: leave out --think, or --closed-form")
    if workload.reuses:
        raise UsageError("what requests share has no closed form: say a prefix_hit, or leave out --closed-form")
    engine = Engine(steps, policy)
    check_longest(engine, workload)
    load = _Load(engine, workload)
    server = _MeanServer(load)
    clients = workload.concurrency
    if clients is None:
        return _open(server, _rate(workload))
    point = server.closed(min(clients, load.slots))
    ttft_s = (point.prompts + max(clients - load.slots, 0)) / point.ends_per_s
    doubt = ""
    if point.prompt_share > _FULL_STEPS and 0 < point.prompts < _FEW * clients and clients <= load.slots:
        doubt = "prompts just fill the token budget of every step: how many wait is uncertain"
    elif clients > 1 and load.alike:
        doubt = "requests of one length that began together stay in step: simulated, their prompts come in waves"
    first_s = server.first_wave_s(clients) + policy.request_s
    first = min(clients, load.slots, workload.count) / workload.count
    found = _steady(server, point.ends_per_s, point, ttft_s)
    run_s = first * first_s + (1 - first) * found.ttft.mean
    return replace(found, first_wave_s=first_s, run_ttft_s=run_s, doubt=doubt)


def _rate(workload: RequestLoad) -> float:
    if workload.rate_per_s is not None:
        return workload.rate_per_s
    asked = workload.trace[: workload.count]
    last_s = asked[-1].arrival_s or 0.0
    if not last_s:
        raise UsageError(
            "all requests of the trace arrive at once, which is no steady state; simulate_requests runs it"
        )
    return (len(asked) - 1) / last_s


class _Point(NamedTuple):
    """Means over time of an engine that holds a number of requests: those per second, requests that decode, requests
    whose prompts wait or run, share of steps with prompts, seconds until the step that runs ends."""

    ends_per_s: float
    batch: float
    prompts: float
    prompt_share: float
    residual_s: float


class _Load:
    """The mean request: new and cached tokens of its prompt, generated tokens, decode steps, tokens in the cache while
    it decodes."""

    def __init__(self, engine: Engine, workload: RequestLoad) -> None:
        self.engine, policy, tokens = engine, engine.policy, engine.tokens_per_step
        asked = workload.typical()
        #: whether each is as long as the next
        self.alike = len(set(asked)) == 1
        self.prompt = sum(each.prompt_tokens for each in asked) / len(asked)
        self.cached = sum(each.cached_tokens for each in asked) / len(asked)
        self.generate = sum(each.generated_tokens for each in asked) / len(asked)
        later = [each.generated_tokens - 1 for each in asked]
        if not sum(later):
            raise UsageError("requests of one token never decode; steady_state wants 2 or more, simulate_requests 1")
        self.steps = max(sum(math.ceil(each / tokens - 1e-9) for each in later) / len(later), 1.0)
        weighted = sum(each.prompt_tokens * more + more * more / 2 for each, more in zip(asked, later, strict=True))
        self.context = weighted / sum(later)
        held = engine.kv_bytes(self.context + policy.verified) * (1 - policy.reserve)
        held += engine.kv_bytes(self.prompt + self.generate + policy.verified) * policy.reserve
        self.slots = max(min(policy.max_batch, int(engine.cache_bytes / held)), 1)

    @property
    def new(self) -> float:
        """Tokens of a prompt that are computed."""
        return self.prompt - self.cached

    def prompts(self, eighths: int) -> list[tuple[int, int]]:
        """New and cached tokens of so many eighths of prompts: whole ones, and a part from the middle of one."""
        whole, cached = max(round(self.new), 1), round(self.cached)
        part = whole * (eighths % 8) // 8
        return [(whole, cached)] * (eighths // 8) + ([(part, cached + (whole - part) // 2)] if part else [])


class _MeanServer:
    """One engine with the mean request; each of its points is computed once."""

    def __init__(self, load: _Load) -> None:
        self.load, self.policy = load, load.engine.policy
        self._points: dict[int, _Point] = {}
        self._nodes: dict[tuple[int, int], float] = {}

    def step_s(self, decodes: int, prompts: float) -> float:
        """Seconds of a step with so many mean prompts, or a part of one."""
        if not prompts:
            return self.load.engine.decode_s(decodes, decodes * self.load.context)
        total = 0.0
        for batch, of_batch in between(decodes, _NODE_BITS):
            for eighths, of_prompts in between(8 * prompts, _NODE_BITS):
                total += of_batch * of_prompts * self._node_s(batch, eighths)
        return total

    def _node_s(self, decodes: int, eighths: int) -> float:
        known = self._nodes.get((decodes, eighths))
        if known is None:
            load = self.load
            known = load.engine.step_s(decodes, decodes * load.context, load.prompts(eighths))
            self._nodes[decodes, eighths] = known
        return known

    def closed(self, clients: int) -> _Point:
        """With so many requests, each followed by another when it ends."""
        if clients not in self._points:
            self._points[clients] = self._point(clients, 0.0)
        return self._points[clients]

    def fed(self, clients: int) -> _Point:
        """With so many requests on average, and others that come at random as fast as they end."""
        return self._point(clients, self.closed(clients).ends_per_s)

    def _point(self, clients: int, rate_per_s: float) -> _Point:
        """The means over a chain of steps. Where it has too many states, only few prompts wait, or as many as make
        some clients one."""
        point, last = self._chain(clients, clients, rate_per_s)
        return point if last < _CUT else self._chain(clients, min(clients, _MOST_STATES), rate_per_s)[0]

    def _chain(self, clients: int, count: int, rate_per_s: float) -> tuple[_Point, float]:
        """The chain of ``count`` times some clients, and the share of its last state if it is cut. Before each step
        parts of prompts wait, which are its states; prompts come with the rate, or where a request ends."""
        load, parts, each = self.load, self._parts(count), clients / count
        state = np.arange(min(parts * count, _MOST_STATES) + 1)
        batch = count - -(-state // parts)
        decodes = batch if self.policy.mixed else np.where(state, 0, batch)
        served = np.minimum(state, self._capacity(batch * each, parts) / each)
        steps = zip(decodes * each, served / parts * each, strict=True)
        seconds = np.array([self.step_s(round(n), float(prompts)) for n, prompts in steps])
        come = [
            _poisson(rate_per_s * s / each) if rate_per_s else _binomial(int(n), 1 / load.steps)
            for n, s in zip(decodes, seconds, strict=True)
        ]
        share = _stationary(_moves(parts, served, come))
        mean_s = share @ seconds
        point = _Point(
            ends_per_s=float(share @ decodes / load.steps / mean_s) * each,
            batch=float(share @ (seconds * batch) / mean_s) * each,
            prompts=float(share @ (seconds * (count - batch)) / mean_s) * each,
            prompt_share=float(1 - share[0]),
            residual_s=float(share @ seconds**2 / mean_s / 2),
        )
        return point, float(share[-1]) if len(state) <= parts * count else 0.0

    def _parts(self, clients: int) -> int:
        """Parts of a prompt that the chain distinguishes."""
        if not self.policy.cut:
            return 1
        return max(min(math.ceil(_PARTS * self.load.new / self.policy.token_budget), _MOST_STATES // clients), 1)

    def _capacity(self, batch: np.ndarray, parts: int) -> np.ndarray:
        """Parts of prompts in a step."""
        policy, new = self.policy, self.load.new
        left: np.ndarray = policy.token_budget - policy.mixed * policy.verified * batch
        return left * parts / new if policy.cut else policy.groups * np.maximum(left // policy.groups // new, 1.0)

    def first_wave_s(self, clients: int) -> float:
        """Mean TTFT of requests that all come at once."""
        wave, done, clock_s, total_s = min(clients, self.load.slots), 0.0, 0.0, 0.0
        while done < wave - 1e-9:
            decodes = int(done + 1e-9) if self.policy.mixed else 0
            prompts = min(wave - done, float(self._capacity(np.array(decodes), 1)))
            clock_s += self.step_s(decodes, prompts)
            before, done = int(done + 1e-9), done + prompts
            total_s += (int(done + 1e-9) - before) * clock_s
        return total_s / wave


def _binomial(count: int, chance: float) -> np.ndarray:
    """The probabilities of 0, 1, ... up to far above the mean."""
    chance, mean = min(chance, 1 - 1e-12), count * chance
    k = np.arange(min(count, int(mean + 8 * math.sqrt(mean)) + 8) + 1)
    chosen = np.concatenate([[0.0], np.cumsum(np.log((count - k[1:] + 1) / k[1:]))])
    shares: np.ndarray = np.exp(chosen + k * math.log(chance) + (count - k) * math.log1p(-chance))
    return shares


def _poisson(mean: float) -> np.ndarray:
    """The probabilities of 0, 1, ... up to far above the mean."""
    counts = np.arange(1, int(mean + 8 * math.sqrt(mean)) + 8)
    return math.exp(-mean) * np.concatenate([[1.0], np.cumprod(mean / counts)])


def _moves(parts: int, served: np.ndarray, prompts: Sequence[np.ndarray]) -> np.ndarray:
    """The probability of each state after each: ``served`` parts leave while some ``prompts`` of ``parts`` come; those
    beyond the last state are there."""
    count = len(served)
    moves = np.zeros((count, count))
    for state, chances in enumerate(prompts):
        low, share = int(served[state]), served[state] % 1
        for left, weight in ((state - low, 1 - share), (state - low - 1, share)):
            if weight:
                reached = np.minimum(left + parts * np.arange(len(chances)), count - 1)
                np.add.at(moves[state], reached, weight * chances)
    return moves


def _stationary(moves: np.ndarray) -> np.ndarray:
    """The share of steps in each state."""
    count = len(moves)
    balance = moves.T - np.eye(count)
    balance[0] = 1.0
    share = np.clip(np.linalg.solve(balance, np.eye(count)[0]), 0.0, None)
    return share / share.sum()


def _open(server: _MeanServer, rate_per_s: float) -> Steady:
    """Poisson arrivals."""
    slots = server.load.slots
    most_per_s = server.closed(slots).ends_per_s
    if rate_per_s > _OVERLOAD * most_per_s:
        said = f"overloaded: {rate_per_s:.4g} requests per second come, and {most_per_s:.4g}/s is the most"
        return replace(_steady(server, most_per_s, server.closed(slots), math.inf), overloaded=said)
    nodes = _grid(slots)
    points = [_Point(0.0, 0.0, 0.0, 0.0, 0.0), *(server.fed(node) for node in nodes[1:])]
    known = [_interpolated(n, nodes, points) for n in range(slots + 1)]
    falls = [rate_per_s / point.ends_per_s for point in known[1:]]
    weights = [1.0, *itertools.accumulate(falls, lambda a, b: a * b)]
    last = min(falls[-1], _OVERLOAD)
    over = weights[-1] * last / (1 - last)  # more requests than places: a geometric tail
    shares = [weight / (sum(weights) + over) for weight in weights]
    waiting = shares[-1] * last / (1 - last) ** 2
    shares[-1] /= 1 - last
    columns = zip(*known, strict=True)
    mean = _Point(*(sum(s * value for s, value in zip(shares, column, strict=True)) for column in columns))
    ttft_s = (mean.prompts + waiting) / rate_per_s + mean.residual_s
    found = _steady(server, rate_per_s, mean, ttft_s)
    return replace(found, doubt=_doubt(server, rate_per_s, most_per_s, mean))


def _doubt(server: _MeanServer, rate_per_s: float, most_per_s: float, mean: _Point) -> str:
    """Why means under Poisson arrivals may be wrong: decodes that a burst of prompts stalls together end together."""
    if rate_per_s > _NEAR_OVERLOAD * most_per_s:
        return f"{rate_per_s / most_per_s:.0%} of the most, {most_per_s:.4g} requests per second: bursts last long"
    batch = max(round(mean.batch), 1)
    alone_s = server.step_s(batch, 1) - server.step_s(batch, 0)
    busy = min(rate_per_s * alone_s, _OVERLOAD)
    if alone_s * busy / (1 - busy) * rate_per_s > _STALLS * mean.batch:
        return f"prompts take {busy:.0%} of the time and stall decodes together"
    return ""


def _grid(most: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12 ... and ``most``."""
    steps = (n for power in range(most.bit_length()) for n in (1 << power, 3 << power >> 1))
    return [0, *sorted({n for n in steps if n < most}), most]


def _interpolated(number: int, nodes: Sequence[int], points: Sequence[_Point]) -> _Point:
    high = next(i for i, node in enumerate(nodes) if node >= number)
    if nodes[high] == number:
        return points[high]
    share = (number - nodes[high - 1]) / (nodes[high] - nodes[high - 1])
    pairs = zip(points[high - 1], points[high], strict=True)
    return _Point(*(a + share * (b - a) for a, b in pairs))


def _steady(server: _MeanServer, per_s: float, point: _Point, ttft_s: float) -> Steady:
    load, full = server.load, "batch" if server.load.slots == server.policy.max_batch else "cache"
    waits = per_s * ttft_s > 2 * point.prompts + per_s * point.residual_s
    held = point.batch * load.engine.kv_bytes(load.context) + point.prompts * load.engine.kv_bytes(load.prompt)
    ttft_s += server.policy.request_s
    return Steady(
        ttft=Spread(ttft_s),
        tpot=Spread(point.batch / per_s / (load.generate - 1)),
        requests_per_s=per_s,
        tokens_per_s=per_s * load.generate,
        prompt_tokens_per_s=per_s * load.prompt,
        batch=point.batch,
        cache_use=min(held / load.engine.cache_bytes, 1.0),
        prompt_share=point.prompt_share,
        largest_batch=load.slots,
        most_requests_per_s=server.closed(load.slots).ends_per_s,
        first_wave_s=ttft_s,
        run_ttft_s=ttft_s,
        wall=full if waits else "",
    )
