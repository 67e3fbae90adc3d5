"""Continuous batching on one engine: which requests share each step, and when it ends.

The rules are vLLM v1's (``vllm/v1/core/sched/scheduler.py``), which SGLang and TensorRT-LLM share but for names:
requests wait first come, first served; a step takes a token of each decoding sequence and then prompts up to a budget
of tokens; a prompt is admitted when the cache has blocks for all of it; when the cache has no block left for the next
token, the youngest sequence is preempted and computed again later; what an engine has kept of a prompt
(:mod:`memwall.serving.simulation.prefixes`) is not computed. Steps of decodes alone between two events are one
:class:`DecodeStretch`, which a request that can be admitted cuts short.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from memwall.serving.simulation.engine import Engine, Policy
from memwall.serving.simulation.prefixes import PrefixCache
from memwall.serving.simulation.workload import AskedRequest


@dataclass(slots=True, eq=False)
class Request:
    """A request under way. ``prompt`` is what must be in the cache before the next token, ``computed`` what is there;
    ``made`` tokens were made when it joined the decodes of its engine at their step ``joined``, which is ``ends`` when
    it is done. Of its prompt ``found`` tokens were in the cache when it was first part of a step; it holds so many
    ``parts`` of its content there. ``later`` are the turns that follow in its session."""

    asked: AskedRequest
    arrival_s: float
    prompt: int
    computed: int
    made: int = 0
    joined: int = 0
    ends: int = 0
    start_s: float | None = None
    first_s: float | None = None
    end_s: float = math.inf
    found: int = 0
    parts: int = 0
    later: tuple[AskedRequest, ...] = ()

    @property
    def most_tokens(self) -> int:
        """Tokens in its cache in the end."""
        return self.asked.tokens


class DecodeStretch:
    """Steps of the same decodes, one after another: ``seconds`` in all, summed over pieces in which the time of a step
    is linear in the context."""

    def __init__(self, engine: Engine, decodes: int, context: float, steps: int) -> None:
        self.steps, self.seconds = 0, 0.0
        #: for each piece: steps before it, seconds before it, seconds of its first step, seconds more of each later one
        self._pieces: list[tuple[int, float, float, float]] = []
        growth = decodes * engine.tokens_per_step
        while self.steps < steps:
            at = context + self.steps * growth
            step = engine.node_distance(at)
            high = (int(at) // step + 1) * step
            count = min(steps - self.steps, math.ceil((high - at) / growth))
            first_s = engine.decode_s(decodes, at)
            slope_s = (engine.decode_s(decodes, high) - first_s) / (high - at) * growth if count > 1 else 0.0
            self._pieces.append((self.steps, self.seconds, first_s, slope_s))
            self.seconds += count * first_s + slope_s * count * (count - 1) / 2
            self.steps += count

    def cut(self, after_s: float) -> None:
        """Keep the steps that begin before ``after_s`` seconds."""
        if after_s >= self.seconds:
            return
        last = max(bisect_right(self._pieces, after_s, key=lambda piece: piece[1]) - 1, 0)
        before, before_s, first_s, slope_s = self._pieces[last]
        linear_s, left_s = first_s - slope_s / 2, after_s - before_s
        root = 2 * left_s / (linear_s + math.sqrt(max(linear_s**2 + 2 * slope_s * left_s, 0.0)))
        count = max(math.ceil(root - 1e-9), 0 if last else 1)  # a step has begun: the first one at least
        self.steps = min(before + count, self.steps)
        count = self.steps - before
        self.seconds = before_s + count * first_s + slope_s * count * (count - 1) / 2


class StepRoom:
    """Tokens that a step has left for prompts, next to so many decodes: each group with sequences of its own has a part
    of the step, and so has each stage of a pipeline. A prompt goes to the part with the most tokens left."""

    def __init__(self, policy: Policy, decodes: int) -> None:
        self._cut, self._decode_tokens = policy.cut, policy.verified if policy.mixed else 0
        own = policy.token_budget // policy.groups
        self._most = own - -(-decodes // policy.groups) * self._decode_tokens
        #: a heap of the tokens of each part, the most first
        self._left = [-self._most] * policy.groups

    @property
    def is_open(self) -> bool:
        """Whether a part has tokens left, or may have a whole prompt that does not fit."""
        return self._left[0] < 0 or (not self._cut and -self._left[0] == self._most)

    def take(self, tokens: int) -> int:
        """So many of a prompt's tokens as the next part takes. A prompt that is not cut waits until it fits, or has the
        part for itself."""
        left = -self._left[0]
        taken = min(tokens, max(left, 0)) if self._cut else tokens if tokens <= left or left == self._most else 0
        heapq.heapreplace(self._left, taken - left)
        return taken

    def decode(self) -> None:
        """One decode more."""
        heapq.heapreplace(self._left, self._left[0] + self._decode_tokens)


@dataclass(slots=True)
class Tally:
    """What an engine did: steps, steps with prompts among them, preemptions, and sums over the seconds that it ran."""

    steps: int = 0
    prompt_steps: int = 0
    preemptions: int = 0
    busy_s: float = 0.0
    batch_s: float = 0.0
    cache_s: float = 0.0
    cache_peak: float = 0.0
    #: seconds in which a request waited for the cache, or for a place in the largest batch
    full_cache_s: float = 0.0
    full_batch_s: float = 0.0


class Scheduler:
    """One engine with its queue. ``end_s`` is when what it does now ends (infinite: it has nothing to do);
    ``prompts_only``: another engine decodes."""

    def __init__(self, engine: Engine, *, prompts_only: bool = False) -> None:
        self.engine, self.policy, self.prompts_only = engine, engine.policy, prompts_only
        self.tally, self.end_s = Tally(), math.inf
        self._begin_s = 0.0
        self._waiting: deque[Request] = deque()
        self._prompts: list[Request] = []
        self._decodes: dict[Request, None] = {}
        #: decode steps so far; (that at which it is done, order, request) of each; context - step * tokens: its sum and
        #: how many decodes have each
        self._count, self._order = 0, 0
        self._ends: list[tuple[int, int, Request]] = []
        self._offsets = 0.0
        self._at: Counter[float] = Counter()
        self._most_bytes = 0
        self._prefixes = PrefixCache()
        self._chunks: list[tuple[Request, int]] = []
        self._stretch: DecodeStretch | None = None

    @property
    def load(self) -> int:
        """Requests here, running or waiting."""
        return len(self._waiting) + len(self._prompts) + len(self._decodes)

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request. An idle engine wakes now; the steps that nothing was to join end where this one may."""
        self._waiting.append(request)
        if self.end_s == math.inf:
            self.end_s = now_s
        elif self._stretch is not None and len(self._waiting) == 1 and self._admits(request):
            self._stretch.cut(now_s - self._begin_s)
            self.end_s = self._begin_s + self._stretch.seconds

    def advance(self) -> list[Request]:
        """End what runs until ``end_s``, and give the requests that are done here; the next call, at the same time,
        begins what follows, so that requests which arrive now are part of it."""
        if self._stretch is None and not self._chunks:
            self._begin(self.end_s)
            return []
        return self._end(self.end_s)

    # -- the end of a step or a stretch --------------------------------------------------------------------------------

    def _end(self, now_s: float) -> list[Request]:
        stretch, chunks = self._stretch, self._chunks
        self._stretch, self._chunks = None, []
        steps = stretch.steps if stretch else 1
        self._record(now_s, steps, bool(chunks))
        if stretch or self.policy.mixed:
            self._count += steps
        done = self._finished()
        for request, new in chunks:
            request.computed += new
            if request.computed == request.prompt:
                self._prompts.remove(request)
                self._keep(request, request.asked.prompt_tokens)
                done += self._first_token(request, now_s)
        if any(request.parts for request in done):
            self._trim(done)
        for request in done:
            request.end_s = now_s
            self._let_go(request, request.asked.prompt_tokens if self.prompts_only else request.most_tokens)
            self._most_bytes -= self.engine.kv_bytes(request.most_tokens + self.policy.verified)
        return done

    def _finished(self) -> list[Request]:
        """The decodes that have all their tokens."""
        done = []
        while self._ends and self._ends[0][0] <= self._count:
            ends, _, request = heapq.heappop(self._ends)
            if request in self._decodes and request.ends == ends:
                self._leave(request)
                done.append(request)
        return done

    def _first_token(self, request: Request, now_s: float) -> list[Request]:
        """After its prompt, or after the tokens that a preempted request had: the next token, and the request if it is
        done with it."""
        request.made += 1
        last = request.made >= request.asked.generated_tokens
        if last and request.first_s is None:
            request.first_s = now_s
        if last or self.prompts_only:
            return [request]
        self._join(request, now_s)
        return []

    def _join(self, request: Request, now_s: float) -> None:
        tokens = self.engine.tokens_per_step
        request.first_s = now_s if request.first_s is None else request.first_s
        request.joined = self._count
        left = request.asked.generated_tokens - request.made
        request.ends = self._count + math.ceil(left / tokens - 1e-9)
        self._decodes[request] = None
        self._offset(request, 1)
        self._order += 1
        heapq.heappush(self._ends, (request.ends, self._order, request))

    def _leave(self, request: Request) -> None:
        del self._decodes[request]
        self._offset(request, -1)

    def _offset(self, request: Request, times: int) -> None:
        offset = request.prompt - self.engine.tokens_per_step * request.joined
        self._offsets += times * offset
        self._at[offset] += times
        if not self._at[offset]:
            del self._at[offset]

    def _record(self, now_s: float, steps: int, prompts: bool) -> None:
        tally, seconds = self.tally, now_s - self._begin_s
        decodes = len(self._decodes)
        held = sum(self.engine.kv_bytes(request.prompt) for request in self._prompts)
        mean = (self._context() + steps / 2 * self.engine.tokens_per_step * decodes) / max(decodes, 1)
        use = (held + decodes * self.engine.kv_bytes(mean)) / self.engine.cache_bytes
        tally.steps += steps
        tally.prompt_steps += steps * prompts
        tally.busy_s += seconds
        tally.batch_s += decodes * seconds
        tally.cache_s += use * seconds
        if self._waiting and not self._admits(self._waiting[0]):
            full = "full_batch_s" if self.load - len(self._waiting) >= self.policy.max_batch else "full_cache_s"
            setattr(tally, full, getattr(tally, full) + seconds)
        tally.cache_peak = max(tally.cache_peak, min(use, 1.0))

    # -- the begin of a step or a stretch ------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        self._begin_s = now_s
        preempted = self._make_room()
        self._chunks = self._take_prompts(now_s, admit=not preempted)
        if self._chunks:
            decodes = len(self._decodes) if self.policy.mixed else 0
            prefills = [(new, request.computed) for request, new in self._chunks]
            self.end_s = now_s + self.engine.step_s(decodes, self._context() if decodes else 0, prefills)
        elif self._decodes:
            steps = 1 if preempted else self._steps_ahead()
            self._stretch = DecodeStretch(self.engine, len(self._decodes), self._context(), steps)
            self.end_s = now_s + self._stretch.seconds
        else:
            self.end_s = math.inf

    def _take_prompts(self, now_s: float, *, admit: bool) -> list[tuple[Request, int]]:
        """The prompts of the next step with their new tokens."""
        room, taken = StepRoom(self.policy, len(self._decodes)), []
        for request in self._prompts:
            if new := room.take(request.prompt - request.computed):
                taken.append((request, new))
        while admit and room.is_open and self._waiting and self._admits(self._waiting[0]):
            self._look_up(self._waiting[0])
            left = self._waiting[0].prompt - self._waiting[0].computed
            new = room.take(left)
            if left and not new:
                break
            request = self._admit(now_s)
            if not left:  # another engine has computed the prompt
                self._join(request, now_s)
                room.decode()
                continue
            self._prompts.append(request)
            taken.append((request, new))
        return taken

    def _admits(self, request: Request) -> bool:
        running = len(self._prompts) + len(self._decodes)
        if running >= self.policy.max_batch:
            return False
        most = self.engine.kv_bytes(request.most_tokens + self.policy.verified)
        if self._most_bytes + most <= self.engine.cache_bytes:
            return True
        reserve, used = self.policy.reserve, self._used_bytes() + self._prompt_bytes(request)
        return used + reserve * (self._most_bytes + most - used) <= self.engine.cache_bytes

    def _admit(self, now_s: float) -> Request:
        request = self._waiting.popleft()
        self._keep(request, request.computed)
        if request.start_s is None:
            request.start_s, request.found = now_s, request.computed
        self._most_bytes += self.engine.kv_bytes(request.most_tokens + self.policy.verified)
        return request

    def _context(self) -> float:
        """Tokens in the caches of the decodes."""
        return self._offsets + len(self._decodes) * self._count * self.engine.tokens_per_step

    # -- the cache -----------------------------------------------------------------------------------------------------

    def _prompt_bytes(self, request: Request) -> int:
        return self.engine.kv_bytes(request.prompt + self.policy.verified)

    def _used_bytes(self, steps: int = 0) -> int:
        """Bytes of the blocks that the decode step after so many more needs, with blocks of prompts."""
        reached = self.engine.tokens_per_step * (self._count + steps) + self.policy.verified
        decodes = sum(n * self.engine.kv_bytes(offset + reached) for offset, n in self._at.items())
        return decodes + sum(map(self._prompt_bytes, self._prompts))

    def _make_room(self) -> bool:
        """Preempt the youngest until the next token of all others has a block; whether any was."""
        before = self.tally.preemptions
        while self._most_bytes > self.engine.cache_bytes and self._used_bytes() > self.engine.cache_bytes:
            self._preempt()
        return self.tally.preemptions > before

    def _preempt(self) -> None:
        if self._prompts:
            request = self._prompts.pop()
        else:
            request = next(reversed(self._decodes))
            self._leave(request)
            request.made += int(self.engine.tokens_per_step * (self._count - request.joined) + 1e-9)
            request.ends = -1
        self._let_go(request, 0)
        request.prompt = request.asked.prompt_tokens + request.made
        request.computed = request.asked.cached_tokens
        self._most_bytes -= self.engine.kv_bytes(request.most_tokens + self.policy.verified)
        self._waiting.appendleft(request)
        self.tally.preemptions += 1

    # -- what is kept of prompts and answers ---------------------------------------------------------------------------

    def _look_up(self, request: Request) -> None:
        """Find what is kept of a waiting prompt, of which nothing is computed here."""
        if request.asked.content and request.computed < request.prompt:
            self._trim()
            request.computed = self._prefixes.found(request.asked.content, request.prompt)

    def _keep(self, request: Request, tokens: int) -> None:
        if request.asked.content:
            request.parts = self._prefixes.hold(request.asked.content, request.parts, tokens)

    def _let_go(self, request: Request, tokens: int) -> None:
        """What a request has computed, its first ``tokens`` among it, may go when memory is needed."""
        if request.parts:
            self._keep(request, tokens)
            self._prefixes.release(request.asked.content, request.parts)
            request.parts = 0

    def _trim(self, ending: Sequence[Request] = ()) -> None:
        """Take memory for running requests, and for requests that end now, from what nobody holds."""
        room = self.engine.cache_bytes - sum(self.engine.kv_bytes(request.most_tokens) for request in ending)
        if self._most_bytes + self._prefixes.idle_tokens * self.engine.token_bytes > room:
            self._prefixes.trim((room - self._used_bytes()) / self.engine.token_bytes)

    def found(self, request: Request) -> int:
        """Tokens of a prompt that the engine has kept."""
        return self._prefixes.found(request.asked.content, request.prompt)

    def _steps_ahead(self) -> int:
        """Decode steps until one is done or the cache is full."""
        while self._ends[0][2].ends != self._ends[0][0]:
            heapq.heappop(self._ends)  # it was preempted
        steps = self._ends[0][0] - self._count
        if self._most_bytes <= self.engine.cache_bytes or self._used_bytes(steps - 1) <= self.engine.cache_bytes:
            return steps
        fits = range(1, steps)
        return bisect_right(fits, self.engine.cache_bytes, key=lambda n: self._used_bytes(n - 1))
