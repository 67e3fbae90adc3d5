"""Attention of a server and its caches as functions of the step: plain, latent, sparse and compressed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from memwall.core.graph import ITEMSIZE
from memwall.ops import Cost, served_calls, sparse_attention, table_calls
from memwall.serving.steps.kernels import NO_COST, StepKernel, share_of
from memwall.serving.steps.step import EngineStep, Layout

#: engines that attend by kernels of sparse attention also where an index would choose all tokens
_SPARSE_ALONE = ("vllm", "trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(StepKernel):
    """Attention with a paged cache, which rotates queries and keys and stores keys and values; ``window`` is the most
    keys that a query attends to, 0 for all; ``top_k`` keys that an index chooses for each head of keys, 0 without one.
    ``source``: all queries attend to so many keys of an encoder's results, which no step but the first writes. An
    encoder's own attention is not ``causal``, and keeps nothing."""

    kind: ClassVar[str] = "Attention"

    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    dtype: str
    window: int = 0
    source: int = 0
    causal: bool = True
    top_k: int = 0

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        heads, kv_heads = share_of(self.heads, layout.tp), share_of(self.kv_heads, layout.tp)
        found = []
        for batch, folded, queries, keys in _calls(step):
            if self.top_k and queries == 1:  # tokens that are verified attend to others each
                batch, folded, keys = batch * folded, 1, min(keys, self.top_k)
            seen = self.source or (min(keys, self.window + folded * queries - 1) if self.window else keys)
            one = served_calls.served_attention(
                batch,
                folded * heads,
                kv_heads,
                queries,
                seen,
                self.head_size,
                self.dtype,
                kv=layout.kv,
                causal=self.causal,
                value_size=self.value_size,
                most=(self.top_k or self.window) if queries > 1 else 0,
            )
            found.append(one)
        return sum(found[1:], found[0]) if found else NO_COST

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        held = self.source or (min(tokens, self.window) if self.window else tokens)
        width = share_of(self.kv_heads, layout.tp) * (self.head_size + self.value_size)
        return held * width * ITEMSIZE[layout.kv or self.dtype]


def _calls(step: EngineStep) -> Iterator[tuple[int, int, int, int]]:
    """(sequences, tokens that share the reads of the cache as heads do, new tokens of each, keys of the last one) of
    the attention calls of a step: kernels of decodes fold the tokens that are verified into the heads."""
    if step.decodes:
        yield step.decodes, step.verified, 1, round(step.context_tokens / step.decodes) + step.verified
    for new, before in step.prefills:
        yield 1, 1, new, new + before


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(StepKernel):
    """Multi-head latent attention: decodes attend to the latents themselves (absorbed), prompts to the keys and values
    that are made of them. The cache, ``rank + rope`` numbers of a token, is on every GPU. ``top_k``: a query attends to
    the latents of no more tokens, which an index chooses; 0: to all."""

    kind: ClassVar[str] = "Latent"

    heads: int
    nope: int
    rope: int
    rank: int
    value: int
    dtype: str
    top_k: int = 0

    @property
    def _widths(self) -> tuple[int, int, int, int]:
        return self.nope, self.rope, self.rank, self.value

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        heads, kv, found = share_of(self.heads, layout.tp), _kv_name(layout, self.dtype), NO_COST
        how: Any = {"engine": served_calls.IN_GRAPHS.get(layout.engine, layout.engine), "widths": self._widths}
        for batch, folded, queries, keys in _calls(step):
            chosen = min(keys, self.top_k or keys)
            is_sparse = chosen < keys or bool(self.top_k and layout.engine in _SPARSE_ALONE)
            if queries == 1 or is_sparse:
                for kind in ("mla_gen_pre", "mla_gen_post"):
                    found += served_calls.latent_product(
                        batch * folded * queries, heads, kind, self.dtype, self._widths
                    )
            else:
                found += table_calls.product(keys, heads * (self.nope + self.value), self.rank, self.dtype)
            if self.top_k and (queries == 1 or is_sparse):
                found += served_calls.latent_chosen(
                    batch, queries, folded * heads, keys, self.top_k, self._widths,
                    engine=layout.engine, cache=kv, dtype=self.dtype,
                )  # fmt: skip
            elif queries == 1:
                found += served_calls.latent_decode(batch, folded * heads, keys, kv, self.dtype, **how)
            else:
                found += served_calls.latent_prefill(batch, heads, queries, keys, kv, **how)
        return found

    def weights_bytes(self, layout: Layout) -> int:
        return share_of(self.heads, layout.tp) * (self.nope + self.value) * self.rank * ITEMSIZE[self.dtype]

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        return tokens * (self.rank + self.rope) * ITEMSIZE[layout.kv or self.dtype]


def _kv_name(layout: Layout, dtype: str) -> str:
    return "fp8" if layout.kv else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(StepKernel):
    """The index of sparse attention (DeepSeek-V3.2): ``heads`` queries of ``size`` fp8 numbers score the key of every
    token before, and the ``top_k`` of the largest weighted sums are attended to. The keys, in fp8 with a float32 scale
    each, are a cache of their own, which is, like the index, whole on every GPU. ``block``: each head alone chooses
    blocks of so many keys by the largest score in each (MiniMax-M3), and all numbers are bfloat16."""

    kind: ClassVar[str] = "Index"

    heads: int
    size: int
    top_k: int
    #: tokens of a key
    ratio: int = 1
    block: int = 0

    @property
    def _keys(self) -> sparse_attention.IndexKeys:
        return sparse_attention.IndexKeys(self.size, self.ratio, self.block)

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        found = NO_COST
        for batch, folded, new, keys in _calls(step):
            rows, held = batch * folded * new, max(keys // self.ratio, 1)
            if new == 1:
                found += sparse_attention.index_scores_paged(rows * held, rows, batch * held, self.heads, self._keys)
            else:
                found += sparse_attention.index_scores(batch, self.heads, new, keys, self._keys)
            shortest, each = max((keys - new + 1) // self.ratio, 1), self.block or 1
            choices = rows * (self.heads if self.block else 1)
            found += sparse_attention.choice(choices, -(-shortest // each), -(-held // each), self.top_k)
        return found

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        return tokens // self.ratio * self._keys.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(StepKernel):
    """Attention of DeepSeek-V4: each query attends to the last ``window`` tokens, and of tokens before to entries that
    stand for ``ratio`` tokens each (0: it has none): to all, or to the ``top_k`` that an index chooses. One vector of
    ``size`` numbers is key and value of all heads. The cache is on every GPU: the window, the entries, ``opened``
    numbers of each token since the last entry, of which the next one is made, and ``shared`` numbers of tokens of the
    last entry, which are part of the next one, too."""

    kind: ClassVar[str] = "Compressed"

    heads: int
    size: int
    window: int
    ratio: int
    opened: int
    dtype: str
    top_k: int = 0
    shared: int = 0

    def cost(self, step: EngineStep, layout: Layout) -> Cost:
        heads, found = share_of(self.heads, layout.tp), NO_COST
        for batch, folded, queries, keys in _calls(step):
            entries = min(self._entries(keys), self.top_k or keys)
            cached = sparse_attention.CACHED_BYTES if layout.kv else self.size * ITEMSIZE[self.dtype]
            found += sparse_attention.sparse_window(
                batch, folded * heads, queries, keys, entries, window=self.window, size=self.size, cached_bytes=cached
            )
        return found

    def _entries(self, tokens: int) -> int:
        return tokens // self.ratio if self.ratio else 0

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        kept = (min(tokens, self.window) + self._entries(tokens)) * self.size
        return (kept + max(self.ratio - 1, 0) * self.opened + self.shared) * ITEMSIZE[layout.kv or self.dtype]
