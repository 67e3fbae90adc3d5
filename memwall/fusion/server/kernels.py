"""The kernels of a server as functions of the step: what each must do for any batch, context and share of the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memwall.core.graph import ITEMSIZE
from memwall.ops import Cost, table_calls
from memwall.ops.experts import SCHEMES as EXPERTS
from memwall.ops.quantised import SCHEMES

#: scheme of products -> that of experts, where it is another
OF_EXPERTS = {"fp8_static": "fp8", "int4_awq": "int4_wo", "mxfp4": "w4a16_mxfp4"}

#: engine of whose latent attention all rows are of eager calls -> the one that runs the same kernels (FlashMLA,
#: CUTLASS, FlashInfer) in a CUDA graph
_IN_GRAPHS = {"vllm": "sglang"}
NO_COST = Cost(launches=())
#: rows from this length on take a kernel with a block for each
_NORM_COLUMNS = 256


@dataclass(frozen=True)
class Step:
    """One step of an engine: ``decodes`` sequences make a token each, with ``context_tokens`` in their caches in all;
    each prefill is (new tokens, tokens before them in the cache). ``verified``: tokens of each decoding sequence, more
    than one where drafts are verified."""

    decodes: int
    context_tokens: int
    prefills: tuple[tuple[int, int], ...] = ()
    verified: int = 1

    @cached_property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return self.decodes * self.verified + sum(new for new, _ in self.prefills)

    @property
    def sequences(self) -> int:
        """Sequences of which it has tokens."""
        return self.decodes + len(self.prefills)

    @property
    def outputs(self) -> int:
        """Rows of logits: of each token that decodes, and of the last one of a prompt."""
        return self.decodes * self.verified + len(self.prefills)


@dataclass(frozen=True, slots=True)
class Layout:
    """How an engine holds the model: ``tp`` GPUs share each product; ``dp`` such groups attend to sequences of their
    own, and all their GPUs share the experts, whole ones among ``ep`` of them and columns of each among the others;
    ``pp`` stages of such GPUs have the layers one after another. ``weights`` and ``experts`` name schemes of
    :mod:`memwall.ops.quantised` (empty: the model's own dtype, and as the other weights), ``kv`` the dtype of the
    cache; ``engine`` is the one whose kernels run."""

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    weights: str = ""
    experts: str = ""
    kv: str = ""
    engine: str = "vllm"

    @property
    def stage_gpus(self) -> int:
        """GPUs that have the same layers."""
        return self.tp * self.dp

    @property
    def gpus(self) -> int:
        return self.stage_gpus * self.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of a step, or a few that follow one another. ``place`` is not part of it: layers are alike.
    ``beside``: it needs nothing of the experts, nor they of it, so that a second stream runs it next to them."""

    beside: bool = False

    def cost(self, step: Step, layout: Layout) -> Cost:
        """What it must do on one GPU."""
        raise NotImplementedError

    def weights_bytes(self, layout: Layout) -> int:
        """Bytes of its weights on one GPU."""
        return 0

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        """Bytes that one sequence of so many tokens holds in its cache, on one GPU."""
        return 0


def _shared(count: int, parts: int) -> int:
    """The largest share of a count that is divided."""
    return -(-count // parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(Kernel):
    """``[rows, k] x [k, n]`` with weights. ``split``: the GPUs share its columns (``column``), its rows (``row``) or
    nothing (``whole``). ``of_sequences``: it has a row for each sequence, not for each token."""

    n: int
    k: int
    dtype: str
    split: str = "whole"
    of_sequences: bool = False
    #: the scheme of its weights, empty for none; None: as the layout says
    own: str | None = None

    def cost(self, step: Step, layout: Layout) -> Cost:
        rows, n, k = step.outputs if self.of_sequences else step.tokens, *self._sizes(layout)
        if scheme := self._scheme(layout):
            return table_calls.quantised_product(rows, n, k, scheme, self.dtype, engine=layout.engine)
        return table_calls.product(rows, n, k, self.dtype)

    def weights_bytes(self, layout: Layout) -> int:
        n, k = self._sizes(layout)
        if scheme := self._scheme(layout):
            return SCHEMES[scheme].weights.nbytes(n, k)
        return n * k * ITEMSIZE[self.dtype]

    def _scheme(self, layout: Layout) -> str:
        return layout.weights if self.own is None else self.own

    def _sizes(self, layout: Layout) -> tuple[int, int]:
        n = _shared(self.n, layout.tp) if self.split == "column" else self.n
        return n, _shared(self.k, layout.tp) if self.split == "row" else self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Kernel):
    """Attention with a paged cache, which rotates queries and keys and stores keys and values; ``window`` is the most
    keys that a query attends to, 0 for all. ``source``: all queries attend to so many keys of an encoder's results,
    which no step but the first writes. An encoder's own attention is not ``causal``, and keeps nothing."""

    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    dtype: str
    window: int = 0
    source: int = 0
    causal: bool = True

    def cost(self, step: Step, layout: Layout) -> Cost:
        heads, kv_heads = _shared(self.heads, layout.tp), _shared(self.kv_heads, layout.tp)
        found = NO_COST
        for batch, folded, queries, keys in _calls(step):
            seen = self.source or (min(keys, self.window + folded * queries - 1) if self.window else keys)
            found += table_calls.served_attention(
                batch, folded * heads, kv_heads, queries, seen, self.head_size, self.dtype, kv=layout.kv,
                causal=self.causal,
            )  # fmt: skip
        return found

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        held = self.source or (min(tokens, self.window) if self.window else tokens)
        width = _shared(self.kv_heads, layout.tp) * (self.head_size + self.value_size)
        return held * width * ITEMSIZE[layout.kv or self.dtype]


def _calls(step: Step) -> Iterator[tuple[int, int, int, int]]:
    """(sequences, tokens that share the reads of the cache as heads do, new tokens of each, keys of the last one) of
    the attention calls of a step: kernels of decodes fold the tokens that are verified into the heads."""
    if step.decodes:
        yield step.decodes, step.verified, 1, round(step.context_tokens / step.decodes) + step.verified
    for new, before in step.prefills:
        yield 1, 1, new, new + before


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(Kernel):
    """Multi-head latent attention: decodes attend to the latents themselves (absorbed), prompts to the keys and values
    that are made of them. The cache, ``rank + rope`` numbers of a token, is on every GPU. ``top_k``: a query attends to
    the latents of no more tokens, which an index chooses; 0: to all."""

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

    def cost(self, step: Step, layout: Layout) -> Cost:
        heads, kv, found = _shared(self.heads, layout.tp), _kv_name(layout, self.dtype), NO_COST
        how: Any = {"engine": _IN_GRAPHS.get(layout.engine, layout.engine), "widths": self._widths}
        for batch, folded, queries, keys in _calls(step):
            chosen = min(keys, self.top_k or keys)
            if queries == 1 or chosen < keys:
                for kind in ("mla_gen_pre", "mla_gen_post"):
                    found += table_calls.latent_product(batch * folded * queries, heads, kind, self.dtype, self._widths)
            else:
                found += table_calls.product(keys, heads * (self.nope + self.value), self.rank, self.dtype)
            if queries == 1:
                found += table_calls.latent_decode(batch, folded * heads, chosen, kv, self.dtype, **how)
            else:
                found += table_calls.latent_prefill(
                    batch, heads, queries, keys, kv, absorbed=chosen < keys, top_k=self.top_k, **how
                )
        return found

    def weights_bytes(self, layout: Layout) -> int:
        return _shared(self.heads, layout.tp) * (self.nope + self.value) * self.rank * ITEMSIZE[self.dtype]

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        return tokens * (self.rank + self.rope) * ITEMSIZE[layout.kv or self.dtype]


def _kv_name(layout: Layout, dtype: str) -> str:
    return "fp8" if layout.kv else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Kernel):
    """The index of sparse attention (DeepSeek-V3.2): ``heads`` queries of ``size`` fp8 numbers score the key of every
    token before, and the ``top_k`` of the largest weighted sums are attended to. The keys, in fp8 with a float32 scale
    each, are a cache of their own, which is, like the index, whole on every GPU."""

    heads: int
    size: int
    top_k: int
    #: tokens of a key
    ratio: int = 1

    def cost(self, step: Step, layout: Layout) -> Cost:
        found = NO_COST
        for batch, folded, new, keys in _calls(step):
            queries, held = folded * new, keys // self.ratio
            found += table_calls.index_scores(batch, self.heads, queries, keys, self.size, self.ratio)
            scored = 4 * batch * queries * held
            found += table_calls.stream(scored, 4 * batch * queries * min(self.top_k, held), max(scored // 4, 1))
        return found

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        return tokens // self.ratio * (self.size + 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(Kernel):
    """Attention of DeepSeek-V4: each query attends to the last ``window`` tokens, and of those before to entries that
    stand for ``ratio`` tokens each (0: it has none): to all, or to the ``top_k`` that an index chooses. One vector of
    ``size`` numbers is key and value of all heads. The cache is on every GPU: the window, the entries, and ``opened``
    numbers of each token since the last entry, of which the next one is made."""

    heads: int
    size: int
    window: int
    ratio: int
    opened: int
    dtype: str
    top_k: int = 0

    def cost(self, step: Step, layout: Layout) -> Cost:
        heads, kv, found = _shared(self.heads, layout.tp), _kv_name(layout, self.dtype), NO_COST
        how: Any = {
            "engine": _IN_GRAPHS.get(layout.engine, layout.engine),
            "widths": (self.size, 0, self.size, self.size),
        }
        for batch, folded, queries, keys in _calls(step):
            entries = min(self._entries(keys), self.top_k or keys)
            if queries == 1:
                seen = min(keys, self.window) + entries
                found += table_calls.latent_decode(batch, folded * heads, seen, kv, self.dtype, **how)
            else:
                seen, far = min(keys, queries + self.window) + self._entries(keys), self.ratio * self.top_k or keys
                window, before = (table_calls.pairs_of(queries, keys, min(most, keys)) for most in (self.window, far))
                pairs = window + self._entries(before)
                found += table_calls.latent_prefill(batch, heads, queries, seen, kv, absorbed=True, pairs=pairs, **how)
        return found

    def _entries(self, tokens: int) -> int:
        return tokens // self.ratio if self.ratio else 0

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        kept = (min(tokens, self.window) + self._entries(tokens)) * self.size
        return (kept + max(self.ratio - 1, 0) * self.opened) * ITEMSIZE[layout.kv or self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded(Kernel):
    """A kernel of an encoder, or of the keys of its results: it runs once for each sequence, with its first tokens, on
    ``tokens`` rows."""

    kernel: Kernel
    tokens: int

    @property
    def step(self) -> Step:
        """What it does for one sequence."""
        return Step(0, 0, ((self.tokens, 0),))

    def cost(self, step: Step, layout: Layout) -> Cost:
        return sum((self.kernel.cost(self.step, layout) for _ in range(begun(step))), NO_COST)

    def weights_bytes(self, layout: Layout) -> int:
        return self.kernel.weights_bytes(layout)


def begun(step: Step) -> int:
    """Sequences that a step begins."""
    return sum(not before for _, before in step.prefills)


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Kernel):
    """The update of a state of constant size: the state is read and written once for each sequence, the rest for each
    token."""

    state_bytes: int
    read_bytes: int
    write_bytes: int
    weight_bytes: int

    def cost(self, step: Step, layout: Layout) -> Cost:
        state = step.sequences * self.state_bytes
        read = (state + step.tokens * self.read_bytes + self.weight_bytes) // layout.tp
        write = (state + step.tokens * self.write_bytes) // layout.tp
        return table_calls.stream(read, write, max(write // 4, 1))

    def weights_bytes(self, layout: Layout) -> int:
        return self.weight_bytes // layout.tp

    def kv_bytes(self, tokens: int, layout: Layout) -> int:
        return self.state_bytes // layout.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Kernel):
    """The fused layer of a mixture: permute, grouped products, activation, combine. The tokens of a step are those of
    all groups."""

    hidden: int
    inter: int
    count: int
    top_k: int
    gated: bool
    dtype: str
    #: the scheme of its weights, empty for none; None: as the layout says
    own: str | None = None

    def cost(self, step: Step, layout: Layout) -> Cost:
        return table_calls.experts(
            step.tokens, self.hidden, self.inter, self.top_k, self.count,
            tp=max(layout.stage_gpus // layout.ep, 1), ep=layout.ep, dtype=self._scheme(layout), gated=self.gated,
            engine=layout.engine,
        )  # fmt: skip

    def weights_bytes(self, layout: Layout) -> int:
        stored, inter = EXPERTS[self._scheme(layout)].weights, (1 + self.gated) * self.inter
        one = stored.nbytes(inter, self.hidden) + stored.nbytes(self.hidden, self.inter)
        return self.count * one // layout.stage_gpus

    def _scheme(self, layout: Layout) -> str:
        scheme = layout.experts or layout.weights if self.own is None else self.own
        return OF_EXPERTS.get(scheme, scheme) or self.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Between(Kernel):
    """Element-wise ops and norms between two anchors: bytes of each token, and those read once. ``columns``: the row
    that it reduces over; 0 for none. ``shared``: of tensors that the GPUs share."""

    read_bytes: int
    write_bytes: int
    weight_bytes: int
    columns: int
    itemsize: int
    shared: bool
    of_sequences: bool = False

    def cost(self, step: Step, layout: Layout) -> Cost:
        rows, parts = step.outputs if self.of_sequences else step.tokens, layout.tp if self.shared else 1
        read = (rows * self.read_bytes + self.weight_bytes) // parts
        write = rows * self.write_bytes // parts
        if self.columns >= _NORM_COLUMNS:
            return table_calls.row_kernel("block_norm", rows, self.columns, self.itemsize, read, write)
        return table_calls.stream(read, write, max(write // self.itemsize, 1))

    def weights_bytes(self, layout: Layout) -> int:
        return self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Kernel):
    """A message between the GPUs of an engine: ``width`` bytes for each token, or for each sequence."""

    op: str
    width: int
    of_sequences: bool = False

    def cost(self, step: Step, layout: Layout) -> Cost:
        return NO_COST

    def message_bytes(self, step: Step) -> int:
        """Bytes of the message, as nccl-tests define its size."""
        return self.width * (step.outputs if self.of_sequences else step.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(Kernel):
    """The next token from the logits: their float32 form, its largest, and a sum over it."""

    vocabulary: int

    def cost(self, step: Step, layout: Layout) -> Cost:
        count = step.outputs * self.vocabulary
        return table_calls.stream(6 * count, 4 * count, count)
