"""Which of several engines that are alike takes a request, and how many of them run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memwall.core.errors import UsageError, unknown
from memwall.core.units import counted
from memwall.serving.simulation.scheduler import Request, Scheduler
from memwall.serving.simulation.workload import LONGEST_S

#: a router that looks for prefixes takes the engine with the longest one where that is more than the first share of the
#: prompt, and no engine has both so many requests and so many times as many as another: defaults of SGLang's router
_WORTH, _AHEAD, _TIMES = 0.3, 64, 1.5

#: engines that are simulated together
MOST_ENGINES = 10_000

#: seconds between two looks at the load, and how long fewer engines must do before one is stopped: defaults of
#: Kubernetes' HorizontalPodAutoscaler (sync period, stabilization window of scaling down)
CHECK_S, PATIENCE_S = 15.0, 300.0


def _least_loaded(engines: Sequence[Scheduler], request: Request, number: int) -> Scheduler:
    """The one with the fewest requests, running or waiting."""
    return min(engines, key=lambda each: each.load)


def _in_turn(engines: Sequence[Scheduler], request: Request, number: int) -> Scheduler:
    """One after another."""
    return engines[number % len(engines)]


def _by_prefix(engines: Sequence[Scheduler], request: Request, number: int) -> Scheduler:
    """The engine that has kept most of the prompt, where that is worth it and its load is not far ahead of others'."""
    loads = [each.load for each in engines]
    if max(loads) - min(loads) <= _AHEAD or max(loads) <= _TIMES * min(loads):
        tokens, _, best = max((each.found(request), -i, each) for i, each in enumerate(engines))
        if tokens > _WORTH * request.prompt:
            return best
    return _least_loaded(engines, request, number)


#: name → which of the engines that run takes a request that so many came before
ROUTES: Mapping[str, Callable[[Sequence[Scheduler], Request, int], Scheduler]] = {
    "least-loaded": _least_loaded, "round-robin": _in_turn, "prefix": _by_prefix,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """From ``least`` to ``most`` engines, so many that each has ``requests``, running or waiting; one that is started
    takes requests ``startup_s`` later."""

    least: int
    most: int
    requests: int
    startup_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.requests < 1:
            raise UsageError(
                f"from {self.least} to {self.most} engines of {self.requests} requests each: want 1 or more, rising"
            )
        if not 0 <= self.startup_s <= LONGEST_S:
            raise UsageError(f"an engine that starts in {self.startup_s:g} s; want 0 to {LONGEST_S:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines that are alike: how many, or how many run when, and which takes a request: a key of :data:`ROUTES`.
    ``failed`` of the replicas are out from the begin, and nothing takes their place."""

    replicas: int = 1
    route: str = "least-loaded"
    autoscale: Autoscale | None = None
    failed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST_ENGINES:
            raise UsageError(f"{self.most:,} replicas are not simulated; want 1 to {MOST_ENGINES:,}")
        if self.route not in ROUTES:
            raise unknown("route", self.route, ROUTES)
        if self.autoscale is not None and self.replicas > 1:
            raise UsageError("autoscaling says how many replicas there are: leave out their number")
        if self.failed and self.autoscale is not None:
            raise UsageError(f"--failed {self.failed} with --autoscale: another replica would start in its place")
        if not 0 <= self.failed < self.replicas:
            raise UsageError(
                f"--failed {self.failed} of {counted(self.replicas, 'engine')}: none is left to serve; an engine that"
                " loses a GPU is out with all of its own, so give more --replicas"
            )

    @property
    def most(self) -> int:
        """The most engines that run at a time."""
        return self.replicas if self.autoscale is None else self.autoscale.most

    @property
    def left(self) -> int:
        """The most engines that take requests at a time."""
        return self.most - self.failed


#: one engine
ONE = Fleet()


class Replicas:
    """A pool of engines, of which the running ones take requests. ``check_s`` is when their number is looked at next
    (infinite: it stays): as many are wanted as the load fills; more are started at once, fewer are kept when fewer were
    wanted for :data:`PATIENCE_S`; an engine that is to stop ends its requests first."""

    def __init__(self, engines: Sequence[Scheduler], fleet: Fleet = ONE) -> None:
        self.engines, self._scale, self._route = engines, fleet.autoscale, ROUTES[fleet.route]
        self._number = 0
        running = len(engines) if self._scale is None else self._scale.least
        #: of each engine that is on when it takes requests, and engines that end theirs
        self._ready_s = dict.fromkeys(engines[:running], 0.0)
        self._ending: dict[Scheduler, None] = {}
        self.check_s = math.inf if self._scale is None else CHECK_S
        self._wanted: deque[tuple[float, int]] = deque()
        self._on, self._checks = 0, 0

    @property
    def mean_on(self) -> float | None:
        """Mean engines that were on, from their start to the end of their last request, at all looks; None where their
        number stays."""
        if self._scale is None:
            return None
        return self._on / self._checks if self._checks else float(len(self._ready_s))

    def pick(self, request: Request, now_s: float) -> Scheduler:
        """The engine that takes a request."""
        taking = self.engines
        if self._scale is not None:
            taking = [each for each, at_s in self._ready_s.items() if at_s <= now_s and each not in self._ending]
        self._number += 1
        return self._route(taking, request, self._number - 1)

    def scale(self, until_s: float = 0.0) -> None:
        """Look at the load, and start or stop engines. Nothing happens until ``until_s``: looks before that at the
        fewest engines without a request find what this one does."""
        scale, now_s = self._scale, self.check_s
        assert scale is not None
        self.check_s = now_s + CHECK_S
        for engine in [each for each in self._ending if not each.load]:
            del self._ending[engine], self._ready_s[engine]
        self._on, self._checks = self._on + len(self._ready_s), self._checks + 1
        load = sum(each.load for each in self.engines)
        wanted = min(max(math.ceil(load / scale.requests), scale.least), scale.most)
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] <= now_s - PATIENCE_S:
            self._wanted.popleft()
        self._start(wanted, now_s)
        self._stop(max(wanted for _, wanted in self._wanted), now_s)
        if not load and len(self._ready_s) == scale.least:
            alike = max(math.ceil((until_s - self.check_s) / CHECK_S), 0)
            self._on, self._checks = self._on + alike * scale.least, self._checks + alike
            self.check_s += alike * CHECK_S

    def _start(self, wanted: int, now_s: float) -> None:
        """Have so many engines, or more: engines that were to stop, then others."""
        assert self._scale is not None
        while len(self._ready_s) - len(self._ending) < wanted:
            if self._ending:
                self._ending.popitem()
            else:
                off = next(each for each in self.engines if each not in self._ready_s)
                self._ready_s[off] = now_s + self._scale.startup_s

    def _stop(self, wanted: int, now_s: float) -> None:
        """Have no more engines than that, but for the last requests of the others: engines that still start stop first,
        then the emptiest."""
        staying = [each for each in self._ready_s if each not in self._ending]
        staying.sort(key=lambda each: (self._ready_s[each] <= now_s, each.load))
        self._ending.update(dict.fromkeys(staying[: max(len(staying) - wanted, 0)]))
