"""What a server knows of an engine: the time of one step, the memory of a cache; and how the engine is run.

An engine is all GPUs that make one step together. Times are of the whole engine, bytes are of one of its GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from memwall.core.errors import UsageError
from memwall.core.units import size

#: tokens of a block of the cache: vLLM's default; a sequence holds whole blocks
BLOCK_TOKENS = 16

#: tokens of a sequence whose mean token stands for one that is kept
_LONG = 8192

#: batches that vLLM captures as CUDA graphs (``cudagraph_capture_sizes``); a step of decodes runs the next larger one
CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))

#: nodes of the interpolation over the context, per octave: times that are affine between two nodes are exact, and a
#: smooth one of ``f''`` is wrong by at most ``f'' / 8`` times a node distance of 1/16 of the context, squared
_NODE_BITS = 5


class Steps(Protocol):
    """The engine steps of one model on one engine. ``capacity_bytes`` is the usable memory of a GPU (its DRAM times the
    share that the server may take), ``reserved_bytes`` what activations, graphs and communication buffers need there;
    ``max_context`` the most tokens of a sequence, None without a limit."""

    @property
    def weights_bytes(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def max_context(self) -> int | None: ...

    def step_s(
        self, decodes: int, context_tokens: int, prefills: Sequence[tuple[int, int]] = (), verified: int = 1
    ) -> float:
        """Seconds of a step: ``decodes`` sequences make a token each, or verify so many, with ``context_tokens`` in
        their caches in all; each prefill is (new tokens, tokens before them in the cache)."""
        ...

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the cache of one sequence of so many tokens on one GPU; windows make it not linear."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: ``draft_tokens`` are guessed by the engine ``draft`` on the same GPUs (None: at no cost),
    and one step of the model verifies them; each is accepted with probability ``accept`` if the guesses before it
    are."""

    draft_tokens: int
    accept: float
    draft: Steps | None = None

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise UsageError(f"{self.draft_tokens} draft tokens are no speculation; want 1 or more")
        if not 0 <= self.accept <= 1:
            nearest = min(max(self.accept, 0.0), 1.0)
            raise UsageError(
                f"a draft token is accepted with a probability from 0 to 1, not {self.accept:g};"
                f" {nearest:g} is the nearest"
            )

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of a sequence per verification: ``(1 - a^(k+1)) / (1 - a)`` (Leviathan et al. 2023, eq. 1):
        the accepted ones, and one that the verification makes itself."""
        return sum(self.accept**i for i in range(self.draft_tokens + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the scheduler fills a step. ``mixed``: decodes first, then prompts, up to ``token_budget``, as vLLM v1 and
    TensorRT-LLM do; otherwise prompts run in steps of their own while decodes wait, as SGLang does by itself. ``cut``:
    a prompt is cut where the tokens of a step end, as vLLM does; otherwise it runs whole, alone if it is longer.
    A step of decodes alone runs the next batch in ``captured`` (empty: no graphs). A prompt is
    admitted when the cache also has room for the share ``reserve`` of all that running requests may still generate: 0
    as vLLM does, which preempts where it went wrong; 1 as TensorRT-LLM does (``GUARANTEED_NO_EVICT``); SGLang is
    between. ``request_s`` passes between a client and the queue. Of ``groups`` with sequences of their own the numbers
    are sums, and each fills its own part of a step."""

    token_budget: int = 8192
    max_batch: int = 256
    mixed: bool = True
    cut: bool = True
    captured: tuple[int, ...] = CAPTURED
    speculation: Speculation | None = None
    reserve: float = 0.0
    request_s: float = 0.0
    groups: int = 1

    def __post_init__(self) -> None:
        if min(self.token_budget, self.max_batch) < 1:
            raise UsageError("a step has at least 1 token and 1 sequence: token_budget and max_batch are above 0")
        if not 0 <= self.reserve <= 1:
            raise UsageError(f"a reserved share of {self.reserve:g}; want 0 (none) to 1 (all that may be generated)")
        if self.mixed and self.max_batch * self.verified > self.token_budget:
            raise UsageError(
                f"{self.max_batch} sequences of {self.verified} tokens do not fit into a step of {self.token_budget};"
                f" max_batch {max(self.token_budget // self.verified, 1)} is the most"
            )

    @property
    def verified(self) -> int:
        """Tokens of a sequence in a decode step: 1, or the drafted ones and one more."""
        return 1 + self.speculation.draft_tokens if self.speculation else 1

    def of_groups(self, groups: int, stages: int) -> Policy:
        """That of so many groups, each of which fills a step so for each stage of a pipeline."""
        parts = groups * stages
        return replace(
            self,
            token_budget=self.token_budget * parts,
            max_batch=self.max_batch * groups,
            captured=tuple(size * parts for size in self.captured),
            groups=parts,
        )


#: chunked prefill, as vLLM runs without options
DEFAULT = Policy()


def between(value: float, bits: int) -> Sequence[tuple[int, float]]:
    """The nodes around a number, whole numbers of so many bits, and the weight of each."""
    step = 1 << max(int(value).bit_length() - bits, 0)
    low = int(value) // step * step
    share = (value - low) / step
    return ((low, 1 - share), (low + step, share)) if share else ((low, 1.0),)


class Engine:
    """An engine under a policy: steps with their drafts, times interpolated over the context, a cache in blocks."""

    def __init__(self, steps: Steps, policy: Policy) -> None:
        """Raises:
        UsageError: the weights do not fit.
        """
        self.steps, self.policy = steps, policy
        self.draft = policy.speculation.draft if policy.speculation else None
        #: expected tokens of a sequence per decode step
        self.tokens_per_step = policy.speculation.tokens_per_step if policy.speculation else 1.0
        self._decode: dict[tuple[int, int], float] = {}
        self._kv = [0]
        if self.cache_bytes <= 0:
            raise UsageError(self._does_not_fit())

    @cached_property
    def cache_bytes(self) -> int:
        """Bytes of a GPU that caches may take."""
        parts = [self.steps] if self.draft is None else [self.steps, self.draft]
        return self.steps.capacity_bytes - sum(part.weights_bytes + part.reserved_bytes for part in parts)

    def _does_not_fit(self) -> str:
        steps, needed = self.steps, self.steps.capacity_bytes - self.cache_bytes
        shared = needed - steps.reserved_bytes  # weights are split over GPUs, activations and buffers are not
        free = steps.capacity_bytes - steps.reserved_bytes
        more = f"{math.ceil(shared / free)} times as many GPUs hold them" if free > 0 else "no number of GPUs helps"
        return (
            f"weights and buffers of {size(needed)} do not fit into the usable {size(steps.capacity_bytes)} of a"
            f" GPU; {more}"
        )

    def kv_bytes(self, tokens: float) -> int:
        """Bytes of the cache of one sequence, in whole blocks; the draft's too."""
        blocks = math.ceil(tokens / BLOCK_TOKENS)
        while len(self._kv) <= blocks:
            held = len(self._kv) * BLOCK_TOKENS
            self._kv.append(self.steps.kv_bytes(held) + (self.draft.kv_bytes(held) if self.draft else 0))
        return self._kv[blocks]

    @cached_property
    def token_bytes(self) -> float:
        """Bytes of a GPU that a token takes of a cache of :data:`_LONG` tokens."""
        return max(self.kv_bytes(_LONG), 1) / _LONG

    def step_s(self, decodes: int, context: float, prefills: Sequence[tuple[int, int]] = ()) -> float:
        """Seconds of a step of prompts, with decodes or without; speculation drafts before it verifies."""
        verified, tokens = self.policy.verified, round(context)
        if verified == 1 or not decodes:
            drafted_s = self.draft.step_s(0, 0, prefills) if self.draft else 0.0
            return self.steps.step_s(decodes, tokens, prefills) + drafted_s
        verified_s = self.steps.step_s(decodes, tokens, prefills, verified)
        if self.draft is None:
            return verified_s
        first_s = self.draft.step_s(decodes, tokens, prefills)
        later = (self.draft.step_s(decodes, tokens + decodes * i) for i in range(1, verified - 1))
        return verified_s + first_s + sum(later)

    def decode_s(self, decodes: int, context: float) -> float:
        """Seconds of a step of decodes alone, captured as a graph: linear between nodes of the context."""
        step = self.node_distance(context)
        low = int(context) // step * step
        low_s, share = self._node_s(decodes, low), (context - low) / step
        return low_s if not share else low_s + share * (self._node_s(decodes, low + step) - low_s)

    @staticmethod
    def node_distance(context: float) -> int:
        """Tokens from one node of the interpolation to the next."""
        return 1 << max(int(context).bit_length() - _NODE_BITS, 0)

    def _node_s(self, decodes: int, context: int) -> float:
        known = self._decode.get((decodes, context))
        if known is None:
            padded = next((batch for batch in self.policy.captured if batch >= decodes), decodes)
            known = self._decode[decodes, context] = self.step_s(padded, context)
        return known
