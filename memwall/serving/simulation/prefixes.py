"""What an engine keeps of prompts and answers for requests that begin with the same tokens.

The rules are vLLM's automatic prefix caching: whole blocks are found from the begin of a prompt on, the last token of
which is always computed; what no request holds stays until running requests need its memory, and goes least recently
used first, of one request from its end. A part that several running requests hold counts for each of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from memwall.serving.simulation.engine import BLOCK_TOKENS
from memwall.serving.simulation.workload import Content


@dataclass(slots=True)
class _Held:
    """A part that requests hold: tokens of it that are computed, and how many requests."""

    tokens: int
    holders: int


class PrefixCache:
    """Parts by name, with tokens in front of each that are computed; ``idle_tokens`` are of parts that nobody holds."""

    def __init__(self) -> None:
        self.idle_tokens = 0
        #: least recently used first
        self._idle: OrderedDict[Hashable, int] = OrderedDict()
        self._held: dict[Hashable, _Held] = {}

    def found(self, content: Content, prompt_tokens: int) -> int:
        """Tokens in front of a prompt that need not be computed."""
        have = 0
        for name, tokens in content:
            held = self._held.get(name)
            kept = held.tokens if held else self._idle.get(name, 0)
            have += min(kept, tokens)
            if kept < tokens:
                break
        return min(have, prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def hold(self, content: Content, parts: int, tokens: int) -> int:
        """A request that holds so many parts has now computed its first ``tokens``: the parts that it holds then."""
        count = 0
        for name, own in _in_front(content, tokens):
            if count < parts:
                self._held[name].tokens = max(self._held[name].tokens, own)
            elif (held := self._held.get(name)) is not None:
                held.tokens, held.holders = max(held.tokens, own), held.holders + 1
            else:
                idle = self._idle.pop(name, 0)
                self.idle_tokens -= idle
                self._held[name] = _Held(max(idle, own), 1)
            count += 1
        return max(count, parts)

    def release(self, content: Content, parts: int) -> None:
        """A request lets go of the parts that it holds."""
        for name, _ in reversed(content[:parts]):
            held = self._held[name]
            held.holders -= 1
            if not held.holders:
                del self._held[name]
                self._idle[name] = held.tokens
                self.idle_tokens += held.tokens

    def trim(self, tokens: float) -> None:
        """Keep no more than so many tokens that nobody holds."""
        while self.idle_tokens > tokens and self._idle:
            name, kept = next(iter(self._idle.items()))
            gone = min(kept, self.idle_tokens - max(int(tokens), 0))
            self.idle_tokens -= gone
            self._idle[name] = kept - gone
            if kept == gone:
                del self._idle[name]


def _in_front(content: Content, tokens: int) -> Iterator[tuple[Hashable, int]]:
    """The parts of the first ``tokens``, the last one as far as they go."""
    for name, own in content:
        if tokens <= 0:
            return
        yield name, min(own, tokens)
        tokens -= own
