"""What clients ask of a server: requests, the sessions that they are turns of, and when they arrive."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from memwall.core.errors import UsageError
from memwall.serving.simulation.engine import BLOCK_TOKENS
from memwall.serving.simulation.lengths import Lengths

#: requests by default: so many for each client of a closed loop, but no fewer than the second number
_PER_CLIENT, _FEWEST = 10, 200

#: seconds from an event to the next at most, some 30 years
LONGEST_S = 1e9
#: the least burst that is not even, and the largest; the most turns of a session, and requests
_BURSTS, _MOST_TURNS, _MOST_REQUESTS = (1e-3, 1e3), 1000, 10_000_000

#: lengths where none are said
PROMPT, ANSWER = Lengths(1024), Lengths(256)

#: typical lengths of a prompt, and of an answer
_TYPICAL = 16

#: what names the tokens that all prompts begin with
_SYSTEM_PROMPT = "system prompt"

#: tokens of a prompt and of the answer behind it, by parts that other requests may begin with, too: a name that equal
#: parts share, and how many tokens
Content = tuple[tuple[Hashable, int], ...]


class AskedRequest(NamedTuple):
    """One request. ``arrival_s`` is None where a client sends it when its last one has ended, ``think_s`` later;
    ``cached_tokens`` of the prompt are in the cache already. What of its ``content`` an engine has kept it need not
    compute."""

    arrival_s: float | None
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int = 0
    content: Content = ()
    think_s: float = 0.0

    @property
    def tokens(self) -> int:
        """All that its cache holds in the end."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True, kw_only=True)
class RequestLoad:
    """Requests and when they arrive: from ``concurrency`` clients that each wait for an answer before they ask again,
    at random with ``rate_per_s``, or as a ``trace`` says. Lengths are tokens; ``pairs`` (prompt, answer) take the place
    of ``prompt`` and ``generate`` where there are any. The seconds between two arrivals have the coefficient of
    variation ``burst``: 1 is Poisson, 0 even; else they have a gamma distribution.

    A request is one of ``turns`` of a session: the prompt of each is all of the session so far and a new ``prompt``,
    asked on average ``think_s`` after the last answer (exponential). ``rate_per_s`` counts all turns. Every session
    begins with the same ``system_prompt`` tokens. What an engine still holds of a prompt is not computed again;
    ``prefix_hit`` says instead which share of each prompt is in the cache, in whole blocks, 0 of them that nothing is.

    ``requests`` in all (None: ten for each client, or two sessions, and 200 or more), the first ``warmup`` of them left
    out of all statistics. The same seed gives the same requests."""

    prompt: Lengths = PROMPT
    generate: Lengths = ANSWER
    pairs: tuple[tuple[int, int], ...] = ()
    concurrency: int | None = None
    rate_per_s: float | None = None
    burst: float = 1.0
    trace: tuple[AskedRequest, ...] = ()
    turns: int = 1
    think_s: float = 0.0
    system_prompt: int = 0
    prefix_hit: float | None = None
    requests: int | None = None
    warmup: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        arrivals = [self.concurrency is not None, self.rate_per_s is not None, bool(self.trace)]
        if sum(arrivals) != 1:
            raise UsageError("requests arrive in one way: give concurrency, rate_per_s or a trace")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"{self.concurrency} clients ask nothing; want a concurrency of 1 or more")
        if self.rate_per_s is not None and not 1 / LONGEST_S <= self.rate_per_s <= LONGEST_S:
            limits = f"{1 / LONGEST_S:g} to {LONGEST_S:g}"
            raise UsageError(f"{self.rate_per_s:g} requests per second; want a rate of {limits}, such as 1")
        if not 0 <= (self.prefix_hit or 0) <= 1:
            raise UsageError(f"a share of {self.prefix_hit:g} of the prompt in the cache; want 0 to 1")
        self._check_sessions()
        if not 1 <= self.count <= _MOST_REQUESTS:
            raise UsageError(f"{self.count:,} requests are no workload; want 1 to {_MOST_REQUESTS:,}")
        if not 0 <= self.warmup < self.count:
            raise UsageError(f"a warm-up of {self.warmup} of {self.count} requests; {self.count - 1} is the most")

    def _check_sessions(self) -> None:
        least, most = _BURSTS
        if self.burst != 0 and not least <= self.burst <= most:
            wanted = f"want a coefficient of variation of {least:g} to {most:g}, 1 for Poisson, or 0"
            raise UsageError(f"a burst of {self.burst:g}; {wanted}")
        if not 0 <= self.think_s <= LONGEST_S:
            raise UsageError(f"{self.think_s:g} s between an answer and the next turn; want 0 to {LONGEST_S:g}")
        if not 1 <= self.turns <= _MOST_TURNS or self.system_prompt < 0:
            raise UsageError(f"a session has 1 to {_MOST_TURNS:,} turns, and a system prompt of 0 tokens or more")
        if self.prefix_hit and (self.turns > 1 or self.system_prompt or any(asked.content for asked in self.trace)):
            raise UsageError(
                f"a share of {self.prefix_hit:g} of each prompt in the cache, and requests that say themselves what"
                " they share: leave one out"
            )

    @property
    def count(self) -> int:
        """Requests in all; sessions are whole."""
        if self.trace:
            return len(self.trace) if self.requests is None else min(self.requests, len(self.trace))
        usual = max(max(_PER_CLIENT, 2 * self.turns) * (self.concurrency or 0), _FEWEST)
        return -(-(usual if self.requests is None else self.requests) // self.turns) * self.turns

    @cached_property
    def longest(self) -> AskedRequest:
        """The request with the most tokens that can come."""
        if self._is_drawn:
            return max(self.asked(), key=lambda asked: asked.tokens)
        return AskedRequest(None, self.system_prompt + self.prompt.most, self.generate.most)

    @cached_property
    def shortest(self) -> AskedRequest:
        """No request has fewer tokens of its prompt to compute, or of its answer to make."""
        prompt, generated = self.system_prompt + self.prompt.least, self.generate.least
        if self._is_drawn:
            prompt = min(asked.prompt_tokens for asked in self.asked())
            generated = min(asked.generated_tokens for asked in self.asked())
        computed = 0 if self.reuses else int(prompt * (1 - (self.prefix_hit or 0)))
        return AskedRequest(None, max(computed, 1), generated)

    @cached_property
    def usual(self) -> AskedRequest:
        """A request of nominal lengths, or of mean ones where requests stand for themselves."""
        if not self._is_drawn:
            prompt = self.system_prompt + self.prompt.nominal + self.prompt.fixed
            return AskedRequest(None, prompt, self.generate.nominal)
        prompt = round(fmean(asked.prompt_tokens for asked in self.asked()))
        return AskedRequest(None, prompt, round(fmean(asked.generated_tokens for asked in self.asked())))

    @cached_property
    def mean_context(self) -> float:
        """Mean tokens in the cache of a request that decodes."""
        if self._is_drawn:
            return fmean(each.prompt_tokens + each.generated_tokens / 2 for each in self.asked())
        return self.system_prompt + self.prompt.mean + self.generate.mean / 2

    @property
    def reuses(self) -> bool:
        """Whether an engine may find a part of a prompt that it has kept."""
        if self.prefix_hit is not None:
            return False
        return self.turns > 1 or self.system_prompt > 0 or any(asked.content for asked in self.trace)

    @property
    def _is_drawn(self) -> bool:
        """Whether requests stand for themselves, and not lengths for them."""
        return bool(self.trace or self.pairs) or self.turns > 1

    def cached(self, prompt_tokens: int) -> int:
        """Tokens of a prompt that are in the cache: whole blocks, and the last token never."""
        return min(int((self.prefix_hit or 0) * prompt_tokens), prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def typical(self) -> list[AskedRequest]:
        """Requests that stand for all: they themselves, or lengths over their ranges, evenly."""
        if self._is_drawn:
            return list(self.asked())
        prompts, generated = self.prompt.evenly(_TYPICAL), self.generate.evenly(_TYPICAL)
        each = [(self.system_prompt + prompt, tokens) for prompt in prompts for tokens in generated]
        return [AskedRequest(None, prompt, tokens, self.cached(prompt)) for prompt, tokens in each]

    def asked(self) -> Iterator[AskedRequest]:
        """The requests in the order in which sessions begin."""
        for session in self.sessions:
            yield from session

    @cached_property
    def sessions(self) -> tuple[tuple[AskedRequest, ...], ...]:
        """The turns of each session, in the order in which sessions begin."""
        return tuple(self._sessions())

    def _sessions(self) -> Iterator[tuple[AskedRequest, ...]]:
        reuses = self.reuses
        for asked in self.trace[: self.count]:
            cached = self.cached(asked.prompt_tokens)
            yield (asked._replace(cached_tokens=cached, content=asked.content if reuses else ()),)
        draw, clock_s = random.Random(self.seed), 0.0
        for number in range(0 if self.trace else self.count // self.turns):
            clock_s += self._gap_s(draw)
            yield tuple(self._turns(draw, number, clock_s if self.rate_per_s else None, reuses))

    def _gap_s(self, draw: random.Random) -> float:
        """Seconds until the next session begins; 0 of clients."""
        per_s = (self.rate_per_s or 0.0) / self.turns
        if not per_s:
            return 0.0
        if self.burst == 1:
            return draw.expovariate(per_s)
        variance = self.burst**2
        return draw.gammavariate(1 / variance, variance / per_s) if variance else 1 / per_s

    def _turns(self, draw: random.Random, number: int, arrival_s: float | None, reuses: bool) -> Iterator[AskedRequest]:
        content: Content = ((_SYSTEM_PROMPT, self.system_prompt),) if self.system_prompt else ()
        before = self.system_prompt
        for turn in range(self.turns):
            new, generate = (
                draw.choice(self.pairs) if self.pairs else (self.prompt.draw(draw), self.generate.draw(draw))
            )
            prompt = before + new
            content += (((number, turn), new + generate),)
            think_s = draw.expovariate(1 / self.think_s) if turn and self.think_s else 0.0
            arrival_s = None if turn else arrival_s
            yield AskedRequest(arrival_s, prompt, generate, self.cached(prompt), content if reuses else (), think_s)
            before = prompt + generate
