"""Servers and objectives: the cheapest candidate that keeps its service-level objectives, and what stops a cheaper one.

A candidate is a simulated server, or its steady state, with GPUs, price and power. An objective is a quantity with a
bound, as in ``ttft_p99<500ms``; :data:`memwall.analysis.quantities.SERVED` has all quantities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memwall.analysis.limits import Limit, parse_limit
from memwall.analysis.numbers import apart
from memwall.analysis.quantities import SERVED, SERVED_ALIASES
from memwall.core.errors import UsageError, suggest
from memwall.core.units import few
from memwall.hardware.engine import EngineHost
from memwall.hardware.prices import Billed
from memwall.serving.simulation.served import Requests, ServedRequest
from memwall.serving.simulation.steady import Steady

_OBJECTIVE = re.compile(r"\s*(\w+)\s*(<=?|>=?)\s*([^<>=+\-\s][^<>=]*)")

#: quantity -> quantity of one request
_OF_A_REQUEST: Mapping[str, Callable[[ServedRequest], float | None]] = {
    "ttft": lambda row: row.ttft_s, "tpot": lambda row: row.tpot_s, "e2e": lambda row: row.e2e_s,
    "tokens_per_s_per_user": lambda row: 1 / row.tpot_s if row.tpot_s else None,
}  # fmt: skip

#: wall -> what stops a server
WALLS = {
    "overloaded": "requests come faster than they are served", "cache": "requests wait for the KV cache",
    "batch": "requests wait for a place in the largest batch", "prompts": "steps with prompts",
    "decode": "steps of decodes",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCandidate(Billed):
    """A server under a workload, of which ``load`` says what comes (``64 clients``). ``gpus`` are all that it needs, in
    the mean, with what each costs and draws; ``is_closed``: clients wait for answers, so that a slower server makes
    fewer tokens; ``wall`` is what limits a decode step of its engine, if known (``bandwidth``);
    ``kv_bytes_per_token`` what one more token of its longest request adds to the cache on a GPU, ``largest_batch`` the
    most sequences that its scheduler takes and its cache holds; ``engine`` has its intervals; the goodput is of
    requests that keep the ``limits`` that are of a request."""

    name: str
    run: Requests | Steady = field(repr=False)
    load: str = ""
    is_closed: bool = False
    wall: str = ""
    kv_bytes_per_token: int | None = None
    largest_batch: int | None = None
    engine: EngineHost | None = None
    limits: tuple[Limit, ...] = ()

    def end_s(self, name: str, end: str) -> float | None:
        """An ``end``, ``low`` or ``high``, of the 80 % interval of the mean ``ttft`` or ``tpot``; None where it is not
        known."""
        spread = getattr(self.run, name, None)
        return spread.mean * getattr(self.engine, f"{name}_{end}") if spread and self.engine else None

    def _goodput(self, of: Callable[[Requests, list[ServedRequest]], float]) -> float | None:
        """A figure of the simulated requests that each keep all limits; None where there is no limit of a request, or
        no request was simulated."""
        limits = [(_OF_A_REQUEST[stem], limit) for limit in self.limits if (stem := _stem(limit)) in _OF_A_REQUEST]
        if isinstance(self.run, Steady) or not limits:
            return None
        keeps = lambda row: all((value := read(row)) is None or limit.holds(value) for read, limit in limits)  # noqa: E731
        return of(self.run, [row for row in self.run.served if keeps(row)])

    @property
    def goodput_share(self) -> float | None:
        """Share of the requests that each keep all limits."""
        return self._goodput(lambda run, good: len(good) / len(run.served))

    @property
    def goodput_per_s(self) -> float | None:
        """Requests per second that each keep all limits."""
        return self._goodput(lambda run, good: len(good) / run.span_s)

    @property
    def goodput_tokens_per_s(self) -> float | None:
        """Generated tokens per second of these requests."""
        return self._goodput(lambda run, good: sum(row.generated_tokens for row in good) / run.span_s)

    @property
    def cost(self) -> float:
        """USD of a million tokens, or GPU seconds of one without prices."""
        return cost_of(self, self.run.tokens_per_s)

    def usd_end(self, end: str) -> float | None:
        """An ``end``, ``low`` or ``high``, of the cost of a million tokens, by the interval of TPOT, to which the time
        of a token is taken to be in proportion; None without prices, and where requests come at a rate."""
        usd = self.usd_of_million(self.run.tokens_per_s)
        return usd * getattr(self.engine, f"tpot_{end}") if usd is not None and self.engine and self.is_closed else None


def cost_of(billed: Billed, tokens_per_s: float) -> float:
    """USD of a million tokens, or GPU seconds of one without prices."""
    usd: float | None = billed.usd_of_million(tokens_per_s)
    return billed.gpus / tokens_per_s if usd is None else usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding(Billed):
    """One decode step of an engine of ``gpus`` GPUs, with ``batch`` sequences of so long a cache that one takes
    ``kv_bytes``: seconds, and bytes on each GPU, of which a server takes up to ``capacity_bytes``. ``held_bytes`` are
    weights and buffers."""

    batch: int
    time_s: float
    limited_by: str
    weights_bytes: int
    held_bytes: int
    kv_bytes: int
    capacity_bytes: int
    engine: EngineHost = field(default_factory=lambda: EngineHost(""))

    @property
    def low_s(self) -> float:
        """The low end of the 80 % interval of the seconds, of a time per output token."""
        return self.time_s * self.engine.tpot_low

    @property
    def high_s(self) -> float:
        """The high end."""
        return self.time_s * self.engine.tpot_high

    def usd_end(self, end: str) -> Any:
        """An ``end``, ``low`` or ``high``, of the cost of a million tokens; None without prices."""
        usd = self.usd_of_million(self.tokens_per_s)
        return None if usd is None else usd * getattr(self.engine, f"tpot_{end}")

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences."""
        return self.batch / self.time_s

    @property
    def memory_bytes(self) -> int:
        """All that the step needs on each GPU."""
        return self.held_bytes + self.batch * self.kv_bytes

    @property
    def fits(self) -> bool:
        """Whether the server's share of a GPU's memory holds it."""
        return self.memory_bytes <= self.capacity_bytes

    @property
    def largest_batch(self) -> int:
        """Sequences that the memory holds; 0 where not even the weights fit."""
        return max(self.capacity_bytes - self.held_bytes, 0) // self.kv_bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """A candidate and the first objective that it misses: its value, and the wall in words."""

    candidate: ServerCandidate
    objective: Limit
    value: float | None
    wall: str

    def __str__(self) -> str:
        value = _value(self.objective, self.value)
        return f"{self.candidate.name}, misses {objective_text(self.objective)} with {value}: {self.wall}"


@dataclass(frozen=True, slots=True)
class Best:
    """The cheapest candidate that keeps all objectives, and the cheaper one nearest in price with what stops it."""

    candidate: ServerCandidate
    cheaper: Stop | None


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """Of the servers under one load the best; None where none keeps all objectives, and why."""

    load: str
    best: Best | None
    unmet: str = ""


def objective(text: str) -> Limit:
    """An objective such as ``ttft_p99<500ms`` or ``tokens_per_s_per_user>20``.

    Raises:
        UsageError: no such quantity or unit (names the nearest), or a bound on the wrong side.
    """
    found = _OBJECTIVE.fullmatch(text)
    if found is None:
        raise UsageError(f"cannot read the objective {text[:60]!r}; want one such as 'ttft_p99<500ms'")
    name, side, bound = found.groups()
    quantity = SERVED.get(SERVED_ALIASES.get(name, name))
    if quantity is None:
        raise UsageError(f"no quantity of a server {name!r}; {suggest(name, [*SERVED, *SERVED_ALIASES])}")
    right = "<" if quantity.lower else ">"
    if side[0] != right:
        better = "lower" if quantity.lower else "higher"
        raise UsageError(f"{text.strip()}: {quantity.title} is better when {better}; want {name}{right}{bound.strip()}")
    return parse_limit(quantity, bound.strip())


def _stem(limit: Limit) -> str:
    """The quantity whose mean or percentile a limit is of: ``ttft_p99_s`` is of ``ttft``."""
    name = limit.quantity.name
    return next((stem for stem in ("ttft", "tpot", "e2e") if name.startswith(f"{stem}_")), name)


def value_of(candidate: ServerCandidate, limit: Limit) -> float | None:
    """What a candidate has of the quantity of an objective; None where it is unknown."""
    found: float | None = limit.quantity.read("serve", candidate)
    return found


def best(candidates: Sequence[ServerCandidate], objectives: Sequence[str | Limit]) -> Best:
    """The cheapest candidate that keeps all objectives: by USD per million generated tokens, or by GPU seconds where no
    price is known.

    Raises:
        UsageError: there is no candidate, some have no price, an objective is wrong or of an unknown value, or no
            candidate keeps all; the message has the best value that is reached.
    """
    if not candidates:
        raise UsageError("no candidate to choose from; give one or more")
    unpriced = [each.name for each in candidates if not each.rates.is_priced]
    if 0 < len(unpriced) < len(candidates):
        raise UsageError(f"no price of {few(unpriced)}: costs compare where all candidates have one, or none")
    limits = [objective(each) if isinstance(each, str) else each for each in objectives]
    _check_known(candidates, limits)
    ranked = sorted(candidates, key=lambda candidate: candidate.cost)
    for index, candidate in enumerate(ranked):
        if not _missed(candidate, limits):
            return Best(candidate, stop(ranked[index - 1], limits) if index else None)
    raise UsageError(_unreachable(candidates, limits))


def choices(candidates: Sequence[ServerCandidate], objectives: Sequence[str | Limit]) -> tuple[ServerChoice, ...]:
    """The best for each load, in their order: how many come is not the server's to choose.

    Raises:
        UsageError: as :func:`best`, where no candidate under any load keeps all.
    """
    overall = best(candidates, objectives)
    found = []
    for load in dict.fromkeys(each.load for each in candidates):
        under = [each for each in candidates if each.load == load]
        try:
            found.append(ServerChoice(load, overall if len(under) == len(candidates) else best(under, objectives)))
        except UsageError as error:
            found.append(ServerChoice(load, None, str(error)))
    return tuple(found)


def _check_known(candidates: Sequence[ServerCandidate], limits: Sequence[Limit]) -> None:
    for name in (limit.quantity.name for limit in limits if all(value_of(each, limit) is None for each in candidates)):
        alike = [row for row in SERVED.values() if row.name.partition("_")[0] == name.partition("_")[0]]
        known = [row.name for row in alike if any(row.read("serve", each) is not None for each in candidates)]
        hint = f"{', '.join(known)} is known" if known else "give the price and the power of a GPU"
        raise UsageError(f"{name} is unknown of all candidates; {hint}")


def stop(candidate: ServerCandidate, limits: Sequence[Limit]) -> Stop | None:
    """The first objective that a candidate misses, and its wall; None where it keeps all."""
    missed = _missed(candidate, limits)
    return Stop(candidate, missed[0], value_of(candidate, missed[0]), _wall(candidate, missed[0])) if missed else None


def _missed(candidate: ServerCandidate, limits: Sequence[Limit]) -> list[Limit]:
    values = [(limit, value_of(candidate, limit)) for limit in limits]
    return [limit for limit, value in values if value is None or math.isinf(value) or not limit.holds(value)]


def _wall(candidate: ServerCandidate, limit: Limit) -> str:
    """What stands behind a value, in words: waits for all but the time of later tokens, and then the kind of step."""
    run, name = candidate.run, limit.quantity.name
    if getattr(run, "overloaded", ""):
        return WALLS["overloaded"]
    if run.wall and not name.startswith(("tpot", "tokens_per_s_per_user")):
        return WALLS[run.wall]
    if name.startswith("ttft") or run.prompt_share > 0.5:
        return WALLS["prompts"]
    return WALLS["decode"] + f", limited by {candidate.wall}" * bool(candidate.wall)


def _unreachable(candidates: Sequence[ServerCandidate], limits: Sequence[Limit]) -> str:
    """Why no candidate keeps all objectives."""
    for limit in limits:
        known = [each for each in candidates if value_of(each, limit) is not None]
        if all(limit in _missed(each, limits) for each in candidates):
            nearest = (min if limit.quantity.lower else max)(known, key=lambda each: value_of(each, limit) or 0.0)
            value = _value(limit, value_of(nearest, limit))
            return f"no candidate keeps {objective_text(limit)}: {value} is the best, of {nearest.name}"
    nearest = min(candidates, key=lambda each: len(_missed(each, limits)))
    return f"no candidate keeps all objectives; the nearest, {stop(nearest, limits)}"


def objective_text(limit: Limit) -> str:
    """``TTFT p99 < 500.00 ms``."""
    return f"{limit.quantity.spoken} {'<' if limit.quantity.lower else '>'} {_value(limit, limit.amount)}"


def _value(limit: Limit, value: float | None) -> str:
    """A value next to the bound of an objective, with digits that tell them apart."""
    if value is None:
        return "unknown"
    return apart([value, limit.amount], limit.quantity.unit)[0] if math.isfinite(value) else "endless"
